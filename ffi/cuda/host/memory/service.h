// One thread that does what may not be done where XLA calls us: a handler may be called while its thread captures a
// graph, when memory can neither be allocated nor exported by it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

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

  // Runs `work` there and returns, or throws, what it did. From the service's own thread it runs at once.
  template <class Work>
  auto Do(Work work) -> decltype(work()) {
    if (std::this_thread::get_id() == thread_.get_id()) return work();
    std::packaged_task<decltype(work())()> task(std::move(work));
    auto result = task.get_future();
    {
      std::lock_guard lock(mutex_);
      queue_.push_back([&task] { task(); });
    }
    wake_.notify_one();
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
