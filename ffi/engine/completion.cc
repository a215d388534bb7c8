#include "engine/completion.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace jaxring {
namespace {

using Clock = std::chrono::steady_clock;

// What lasts longer is worth a thread of its own: a few wake-ups across cores, of 18 us each. The end of a program with
// fifty results is no such case.
constexpr auto kLong = std::chrono::microseconds(100);
// A long completion weighs as much as so many short ones. Two near each other say that the programs are of this kind;
// a single one may be a thread that lost its core for a while.
constexpr int kWeight = 8, kMostWeight = 128;
constexpr auto kLookEvery = std::chrono::microseconds(500);
// Looks without any completion after which nobody looks until one is posted.
constexpr int kQuietLooks = 20;

// Of what this thread completes now: how much of the time so far was the collective's own. Negative: it completes
// nothing.
thread_local Clock::duration playing{-1};

}  // namespace

CompletionPool::Playing::Playing() {
  if (playing >= Clock::duration::zero()) begun_ = Clock::now();
}

CompletionPool::Playing::~Playing() {
  if (begun_ != Clock::time_point{}) playing += Clock::now() - begun_;
}

CompletionPool::CompletionPool() {
  threads_.emplace_back([this] { Run(); });
}

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
  if (Apart()) return Summon(queue_.size());
  if (busy_ == 0) Summon(1);
  if (calls_ >= queue_.size() || looking_) return;
  looking_ = true;
  if (!looker_.joinable()) {
    try {
      looker_ = std::thread([this] { Look(); });
    } catch (const std::system_error&) {
      looking_ = false;
    }
  }
  look_.notify_one();
}

bool CompletionPool::Apart() const { return weight_ > kWeight; }

void CompletionPool::Summon(size_t threads) {
  for (; calls_ < threads; ++calls_) {
    if (calls_ < idle_) {
      wake_.notify_one();
    } else if (!Another()) {
      return;
    }
  }
}

bool CompletionPool::Another() {
  try {
    threads_.emplace_back([this] { Run(); });
    return true;
  } catch (const std::system_error&) {  // a limit: those that there are have to do
    return false;
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
      playing = Clock::duration::zero();
      work();
      work = nullptr;
      const bool is_long = Clock::now() - begin - playing > kLong;
      lock.lock();
      weight_ = is_long ? std::min(weight_ + kWeight, kMostWeight) : std::max(weight_ - 1, 0);
      if (is_long && Apart()) Summon(queue_.size());
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
        weight_ = kMostWeight;
        Summon(queue_.size());
      }
      waited = !queue_.empty();
      taken = taken_;
    }
    looking_ = false;
  }
}

}  // namespace jaxring
