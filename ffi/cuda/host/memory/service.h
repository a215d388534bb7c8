// A thread for calls that must not be made where XLA calls a handler: the handler's thread may be capturing a graph,
// and then it can neither allocate nor export memory.
#pragma once

#include <deque>
#include <functional>
#include <future>
#include <thread>

#include "base/condition_variable.h"
#include "base/mutex.h"
#include "base/thread_name.h"

namespace jaxring::cuda {

class Service {
 public:
  Service() : thread_([this] { Run(); }) {}
  ~Service() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    wake_.NotifyAll();
    thread_.join();
  }
  Service(const Service&) = delete;

  // Has the service's thread run `work`, which must not throw, some time later.
  void Post(std::function<void()> work) {
    {
      MutexLock lock(mutex_);
      queue_.push_back(std::move(work));
    }
    wake_.NotifyOne();
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
    NameThread("jaxring-cuda");
    RelockableMutexLock lock(mutex_);
    while (true) {
      while (!stop_ && queue_.empty()) wake_.Wait(mutex_);
      if (queue_.empty()) return;
      auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.Unlock();
      work();
      lock.Lock();
    }
  }

  Mutex mutex_;
  ConditionVariable wake_;
  std::deque<std::function<void()>> queue_ JAXRING_GUARDED_BY(mutex_);
  bool stop_ JAXRING_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace jaxring::cuda
