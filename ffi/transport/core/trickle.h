// Notices that a connection takes far less than it did before, though it always has something to send.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

namespace jaxring {

class Trickle {
 public:
  using Time = std::chrono::steady_clock::time_point;

  bool IsDue(Time now) const { return now - at_ >= kEvery; }
  double SecondsSince(Time now) const { return std::chrono::duration<double>(now - at_).count(); }
  // To be called when it is due. `acked`: how many bytes the peer's host has acknowledged so far; `busy`: something was
  // under way all the time since the last call; `queued`: bytes that are not acknowledged. True at the second call in a
  // row that finds less than a twentieth of the best rate.
  bool Look(Time now, int64_t acked, bool busy, int64_t queued) {
    const bool first = at_ == Time{};
    const double rate = static_cast<double>(acked - acked_) / SecondsSince(now);
    at_ = now;
    acked_ = acked;
    if (first) return false;
    best_ = std::max(best_, rate);
    const bool waits = static_cast<double>(queued) > kQueuedS * rate;
    const bool slow = busy && waits && rate < best_ / kTimes;
    return std::exchange(slow_, slow) && slow;
  }

 private:
  static constexpr auto kEvery = std::chrono::milliseconds(200);
  static constexpr double kTimes = 20, kQueuedS = 0.3;

  Time at_{};
  int64_t acked_ = 0;
  double best_ = 0;  // bytes per second
  bool slow_ = false;
};

}  // namespace jaxring
