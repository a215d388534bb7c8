// A thread for calls that must not be made where XLA calls a handler: the handler's thread may be capturing a graph,
// and then it can neither allocate nor export memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "base/old_symbols.h"

namespace jaxring::cuda {

class Service {
 public:
  Service() : thread_([this] { Run(); }) {}
  ~Service() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  Service(const Service&) = delete;

  // Has the service's thread run `work`, which must not throw, some time later.
  void Post(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
  }

  // Runs `work` on the service's thread and returns its result or throws its exception. On that thread it runs at once.
  template <class Work>
  auto Do(Work work) -> decltype(work()) {
    if (std::this_thread::get_id() == thread_.get_id()) return work();
    std::packaged_task<decltype(work())()> task(std::move(work));
    auto result = task.get_future();
    Post([&task] { task(); });
    return result.get();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace jaxring::cuda
