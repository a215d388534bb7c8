// The threads that complete XLA's promises. XLA runs the rest of a device's program on the thread that completes its
// promise.
//
// Between small collectives that rest takes a few microseconds, and waking a thread takes longer. So one thread runs
// the completions of all devices one after another. But a completion that runs long, or waits for another device, must
// not hold up those behind it. Long completions are noticed when they end, or by a monitor thread that checks every
// half millisecond. From then on each completion gets a thread of its own. After many short ones they share a thread
// again.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/condition_variable.h"
#include "base/mutex.h"

namespace jaxring {

class CompletionPool {
 public:
  using Work = std::function<void()>;
  // Starts the first thread, which suffices if the system allows no further ones; `stepped`: none ever.
  explicit CompletionPool(bool stepped = false);
  ~CompletionPool();
  CompletionPool(const CompletionPool&) = delete;
  void Post(Work work);
  // Posts all completions of an operation together; leaves `works` empty.
  void PostAll(std::vector<Work>* works);
  // Where there are no threads: calls the oldest that waits. False if none does.
  bool RunOne();

  // Exists while its thread executes a collective. All devices wait for the end of that, so the time does not count as
  // part of a long completion.
  class InCollective {
   public:
    InCollective();
    ~InCollective();
    InCollective(const InCollective&) = delete;

   private:
    Clock::time_point begun_{};
  };

 private:
  void Run();
  // The monitor thread: checks that the completions that share a thread make progress.
  void Monitor();
  void Dispatch() JAXRING_REQUIRES(mutex_);
  bool Separate() const JAXRING_REQUIRES(mutex_);  // whether each completion gets a thread of its own
  void WakeThreads(size_t threads) JAXRING_REQUIRES(mutex_);
  bool AddThread() JAXRING_REQUIRES(mutex_);  // false if the system allows no more

  const bool stepped_;
  Mutex mutex_;
  ConditionVariable wake_, monitor_wake_;
  std::deque<Work> queue_ JAXRING_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ JAXRING_GUARDED_BY(mutex_);
  std::thread monitor_ JAXRING_GUARDED_BY(mutex_);
  size_t idle_ JAXRING_GUARDED_BY(mutex_) = 0;     // threads that wait to be woken
  size_t calls_ JAXRING_GUARDED_BY(mutex_) = 0;    // wake-ups that no thread has consumed yet
  size_t busy_ JAXRING_GUARDED_BY(mutex_) = 0;     // threads that run completions until the queue is empty
  uint64_t taken_ JAXRING_GUARDED_BY(mutex_) = 0;  // completions taken from the queue so far
  int weight_ JAXRING_GUARDED_BY(mutex_) = 0;      // of the long completions among the latest ones
  bool monitoring_ JAXRING_GUARDED_BY(mutex_) = false;
  bool stop_ JAXRING_GUARDED_BY(mutex_) = false;
};

}  // namespace jaxring
