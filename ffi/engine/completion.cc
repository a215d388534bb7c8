#include "engine/completion.h"

#include <utility>

namespace jaxring {

CompletionPool::~CompletionPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void CompletionPool::Post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    if (queue_.size() > idle_) threads_.emplace_back([this] { Run(); });
  }
  wake_.notify_one();
}

void CompletionPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    auto work = std::move(queue_.back());
    queue_.pop_back();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace jaxring
