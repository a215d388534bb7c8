#include "engine/threads/completion.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/thread_name.h"

namespace jaxring {
namespace {

// A completion that lasts longer than this is worth a thread of its own: the time of a few wake-ups across cores, of
// 18 us each. The end of a program with fifty results takes less.
constexpr auto kLong = std::chrono::microseconds(100);
// A long completion weighs as much as so many short ones. A single long one may be a thread that lost its core for a
// while; two near each other mean that the program's completions are long.
constexpr int kWeight = 8, kMostWeight = 128;
constexpr auto kMonitorEvery = std::chrono::microseconds(500);
// The monitor sleeps after so many checks without any completion, until one is posted.
constexpr int kQuietChecks = 20;

// How much of the time of this thread's current completion was spent executing collectives. Negative outside of a
// completion.
thread_local Clock::duration collective_time{-1};

}  // namespace

CompletionPool::InCollective::InCollective() {
  if (collective_time >= Clock::duration::zero()) begun_ = Clock::now();
}

CompletionPool::InCollective::~InCollective() {
  if (begun_ != Clock::time_point{}) collective_time += Clock::now() - begun_;
}

CompletionPool::CompletionPool(bool stepped) : stepped_(stepped) {
  if (stepped) return;
  threads_.emplace_back([this] { Run(); });
}

CompletionPool::~CompletionPool() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  monitor_wake_.NotifyAll();
  for (auto& thread : threads_) thread.join();
  if (monitor_.joinable()) monitor_.join();
}

void CompletionPool::Post(Work work) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(work));
  Dispatch();
}

void CompletionPool::PostAll(std::vector<Work>* works) {
  if (works->empty()) return;
  MutexLock lock(mutex_);
  for (Work& work : *works) queue_.push_back(std::move(work));
  works->clear();
  Dispatch();
}

bool CompletionPool::RunOne() {
  Work work;
  {
    MutexLock lock(mutex_);
    if (queue_.empty()) return false;
    work = std::move(queue_.front());
    queue_.pop_front();
  }
  work();
  return true;
}

void CompletionPool::Dispatch() {
  if (stepped_) return;
  if (Separate()) return WakeThreads(queue_.size());
  if (busy_ == 0) WakeThreads(1);
  if (calls_ >= queue_.size() || monitoring_) return;
  monitoring_ = true;
  if (!monitor_.joinable()) {
    try {
      monitor_ = std::thread([this] { Monitor(); });
    } catch (const std::system_error&) {
      monitoring_ = false;
    }
  }
  monitor_wake_.NotifyOne();
}

bool CompletionPool::Separate() const { return weight_ > kWeight; }

void CompletionPool::WakeThreads(size_t threads) {
  for (; calls_ < threads; ++calls_) {
    if (calls_ < idle_) {
      wake_.NotifyOne();
    } else if (!AddThread()) {
      return;
    }
  }
}

bool CompletionPool::AddThread() {
  try {
    threads_.emplace_back([this] { Run(); });
    return true;
  } catch (const std::system_error&) {  // at a limit of threads the existing ones have to suffice
    return false;
  }
}

void CompletionPool::Run() {
  NameThread("jaxring-done");
  RelockableMutexLock lock(mutex_);
  while (true) {
    ++idle_;
    while (!stop_ && calls_ == 0) wake_.Wait(mutex_);
    --idle_;
    if (calls_ > 0) --calls_;
    if (stop_ && queue_.empty()) return;
    ++busy_;
    while (!queue_.empty()) {
      Work work = std::move(queue_.front());
      queue_.pop_front();
      ++taken_;
      lock.Unlock();
      const auto begin = Clock::now();
      collective_time = Clock::duration::zero();
      work();
      work = nullptr;
      const bool is_long = Clock::now() - begin - collective_time > kLong;
      lock.Lock();
      weight_ = is_long ? std::min(weight_ + kWeight, kMostWeight) : std::max(weight_ - 1, 0);
      if (is_long && Separate()) WakeThreads(queue_.size());
    }
    --busy_;
  }
}

void CompletionPool::Monitor() {
  NameThread("jaxring-done");
  MutexLock lock(mutex_);
  while (!stop_) {
    while (!stop_ && !monitoring_) monitor_wake_.Wait(mutex_);
    uint64_t taken = taken_;
    bool waited = false;
    for (int quiet = 0; !stop_ && quiet < kQuietChecks;) {
      const auto next = Clock::now() + kMonitorEvery;
      while (!stop_ && monitor_wake_.WaitUntil(mutex_, next)) {
      }
      quiet = queue_.empty() && taken == taken_ ? quiet + 1 : 0;
      // The queue has made no progress since the previous check.
      if (waited && !queue_.empty() && taken == taken_) {
        weight_ = kMostWeight;
        WakeThreads(queue_.size());
      }
      waited = !queue_.empty();
      taken = taken_;
    }
    monitoring_ = false;
  }
}

}  // namespace jaxring
