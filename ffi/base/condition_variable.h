// A condition variable for jaxring::Mutex. Waits take no predicate, since clang does not see in a lambda that the mutex
// is held: write `while (!ready_) changed_.Wait(mutex_);`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/mutex.h"

// Since std::condition_variable::wait became noexcept, libstdc++ 12 and later export it once more, and a module would
// be bound to that: GLIBCXX_3.4.30, which systems of the same C library (2.34, such as RHEL 9) lack. The older one is
// the same function, and every libstdc++ has it.
#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 12
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif

namespace jaxring {

// The deadline of a wait of so many seconds.
inline std::chrono::steady_clock::time_point After(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

class ConditionVariable {
 public:
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }
  // Every wait unlocks the mutex meanwhile, and may return for no reason.
  void Wait(Mutex& mutex) JAXRING_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Returns false at the deadline.
  template <class Clock, class Duration>
  bool WaitUntil(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& deadline) JAXRING_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace jaxring
