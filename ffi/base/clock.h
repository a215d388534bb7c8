// What the engine asks of the system's scheduler: what time it is, and to let other threads run. A simulation answers
// both itself, in virtual time.
#pragma once

#include <sched.h>

#include <chrono>

namespace jaxring {

struct Clock {
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now() noexcept { return source(); }
  // Gives the CPU to others, between two looks of a thread that polls. The caller holds no mutex.
  static void Yield() { yield(); }

  // What these call. Only to be changed while there is no engine.
  static inline time_point (*source)() noexcept = &std::chrono::steady_clock::now;
  static inline void (*yield)() = [] { sched_yield(); };
};

}  // namespace jaxring
