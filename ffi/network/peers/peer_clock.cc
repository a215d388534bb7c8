#include "network/peers/peer_clock.h"

namespace jaxring {
namespace {

// Two clocks drift apart by less than 100 ppm: by 1 ns in so many.
constexpr int64_t kDriftInverse = 10000;

}  // namespace

void PeerClock::Compare(const HeartbeatTimes& times, int64_t here) {
  if (times.sent <= 0 || times.echoed <= 0 || times.held < 0) return;
  if (times.echoed > here || times.held > here - times.echoed) return;
  // The moments of two heartbeats, here -> there -> here: what they took both ways bounds how wrong the difference is.
  const int64_t travel = here - times.echoed - times.held;
  const ClockOffset aged = At(here);
  if (aged.error_ns >= 0 && travel / 2 > aged.error_ns) return;
  best_ = {times.sent - times.held / 2 - (times.echoed + (here - times.echoed) / 2), travel / 2 + 1};
  compared_ns_ = here;
}

ClockOffset PeerClock::At(int64_t here) const {
  if (best_.error_ns < 0) return best_;
  return {best_.offset_ns, best_.error_ns + (here - compared_ns_) / kDriftInverse};
}

}  // namespace jaxring
