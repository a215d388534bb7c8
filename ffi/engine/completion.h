// Threads that complete promises. XLA runs the rest of a device's program on the thread that completes its promise, so
// no completion may queue behind another: a thread is started whenever none is idle.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace jaxring {

class CompletionPool {
 public:
  CompletionPool() = default;
  ~CompletionPool();
  CompletionPool(const CompletionPool&) = delete;
  void Post(std::function<void()> work);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stop_ = false;
};

}  // namespace jaxring
