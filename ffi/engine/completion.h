// Threads that complete promises. XLA runs the rest of a device's program on the thread that completes its promise.
//
// Between small collectives that rest is a few microseconds, and a thread's wake-up costs more: one thread then runs
// the completions of all devices one after another, and the whole program with them. What runs long, or waits for
// another device, must not hold up the completions behind it: long ones are noticed, when they end or by a thread that
// looks every half millisecond, and from then on each completion gets a thread of its own. Only after a good many short
// ones do they share one again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace jaxring {

class CompletionPool {
 public:
  using Work = std::function<void()>;
  CompletionPool();  // with the one thread that there is also where no other can be had
  ~CompletionPool();
  CompletionPool(const CompletionPool&) = delete;
  void Post(Work work);
  // All of one operation together; leaves `works` empty.
  void PostAll(std::vector<Work>* works);

  // While it lives, its thread plays a collective, for whose end all devices wait: that holds up nobody, and is no
  // reason to give the completions behind it threads of their own.
  class Playing {
   public:
    Playing();
    ~Playing();
    Playing(const Playing&) = delete;

   private:
    std::chrono::steady_clock::time_point begun_{};
  };

 private:
  void Run();
  // Looks whether the completions that share a thread move.
  void Look();
  // With the lock held.
  void Share();
  bool Apart() const;  // each completion gets a thread of its own
  void Summon(size_t threads);
  bool Another();  // one thread more; false where the system has none

  std::mutex mutex_;
  std::condition_variable wake_, look_;
  std::deque<Work> queue_;
  std::vector<std::thread> threads_;
  std::thread looker_;
  size_t idle_ = 0;     // threads that wait for a call
  size_t calls_ = 0;    // calls that no thread has answered yet
  size_t busy_ = 0;     // threads that run completions, and look for more afterwards
  uint64_t taken_ = 0;  // completions taken from the queue so far
  int weight_ = 0;      // of the long completions among the last ones
  bool looking_ = false;
  bool stop_ = false;
};

}  // namespace jaxring
