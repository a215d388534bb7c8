#include "engine/completion.h"

#include <chrono>
#include <utility>

namespace jaxring {
namespace {

using Clock = std::chrono::steady_clock;

// A wake-up's cost across cores, measured: what lasts longer is worth a thread of its own.
constexpr auto kLong = std::chrono::microseconds(20);
// Short completions in a row until they share a thread again.
constexpr int kApart = 128;
constexpr auto kLookEvery = std::chrono::microseconds(500);
// Looks without any completion after which nobody looks until one is posted.
constexpr int kQuietLooks = 20;

}  // namespace

CompletionPool::~CompletionPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  look_.notify_all();
  for (auto& thread : threads_) thread.join();
  if (looker_.joinable()) looker_.join();
}

void CompletionPool::Post(Work work) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  Share();
}

void CompletionPool::PostAll(std::vector<Work>* works) {
  if (works->empty()) return;
  std::lock_guard lock(mutex_);
  for (Work& work : *works) queue_.push_back(std::move(work));
  works->clear();
  Share();
}

void CompletionPool::Share() {
  if (apart_ > 0) return Summon(queue_.size());
  if (busy_ == 0) Summon(1);
  if (calls_ >= queue_.size() || looking_) return;
  looking_ = true;
  if (!looker_.joinable()) looker_ = std::thread([this] { Look(); });
  look_.notify_one();
}

void CompletionPool::Summon(size_t threads) {
  for (; calls_ < threads; ++calls_) {
    if (calls_ < idle_) {
      wake_.notify_one();
    } else {
      threads_.emplace_back([this] { Run(); });
    }
  }
}

void CompletionPool::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    wake_.wait(lock, [this] { return stop_ || calls_ > 0; });
    --idle_;
    if (calls_ > 0) --calls_;
    if (stop_ && queue_.empty()) return;
    ++busy_;
    while (!queue_.empty()) {
      Work work = std::move(queue_.front());
      queue_.pop_front();
      ++taken_;
      lock.unlock();
      const auto begin = Clock::now();
      work();
      work = nullptr;
      const bool is_long = Clock::now() - begin > kLong;
      lock.lock();
      if (is_long) {
        apart_ = kApart;
        Summon(queue_.size());
      } else if (apart_ > 0) {
        --apart_;
      }
    }
    --busy_;
  }
}

void CompletionPool::Look() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    look_.wait(lock, [this] { return stop_ || looking_; });
    uint64_t taken = taken_;
    bool waited = false;
    for (int quiet = 0; !stop_ && quiet < kQuietLooks;) {
      look_.wait_for(lock, kLookEvery, [this] { return stop_; });
      quiet = queue_.empty() && taken == taken_ ? quiet + 1 : 0;
      // What stood first half a millisecond ago still does.
      if (waited && !queue_.empty() && taken == taken_) {
        apart_ = kApart;
        Summon(queue_.size());
      }
      waited = !queue_.empty();
      taken = taken_;
    }
    looking_ = false;
  }
}

}  // namespace jaxring
