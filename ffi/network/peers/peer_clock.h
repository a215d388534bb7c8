// How the clock of another process differs from this one's, by the times that heartbeats carry.
#pragma once

#include <cstdint>

#include "network/peers/heartbeat_data.h"

namespace jaxring {

class PeerClock {
 public:
  // Takes the times of a heartbeat that arrived at `here`, in ns by this process's clock. They may be any numbers.
  void Compare(const HeartbeatTimes& times, int64_t here);
  // The difference at `here`. Its error is that of the best comparison, and what the clocks may have drifted apart
  // since.
  ClockOffset At(int64_t here) const;

 private:
  ClockOffset best_;
  int64_t compared_ns_ = 0;
};

}  // namespace jaxring
