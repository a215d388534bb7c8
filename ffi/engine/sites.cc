#include "engine/sites.h"

#include "engine/site.h"

namespace jaxring {

void Sites::Add(const std::shared_ptr<Site>& site) {
  MutexLock lock(sites_mutex_);
  sites_.emplace(site->id(), site);
}

void Sites::Remove(const Site& site) {
  MutexLock lock(sites_mutex_);
  sites_.erase(site.id());
}

std::vector<std::shared_ptr<Site>> Sites::All() {
  std::vector<std::shared_ptr<Site>> all;
  MutexLock lock(sites_mutex_);
  for (const auto& entry : sites_) {
    if (auto site = entry.second.lock()) all.push_back(std::move(site));
  }
  return all;
}

void Sites::Watch(std::weak_ptr<Site> site) {
  MutexLock lock(mutex_);
  watched_.push_back(std::move(site));
}

void Sites::CheckDeadlines(Clock::time_point now, const std::string* halted) {
  std::vector<std::weak_ptr<Site>> watched;
  {
    MutexLock lock(mutex_);
    watched.swap(watched_);
  }
  for (auto& weak : watched) {
    if (auto site = weak.lock(); site && site->CheckDeadlines(now, halted)) Watch(weak);
  }
}

std::vector<Activity> Sites::Waiting(Clock::time_point now) {
  std::vector<std::weak_ptr<Site>> watched;
  {
    MutexLock lock(mutex_);
    watched = watched_;
  }
  std::vector<Activity> waiting;
  for (auto& weak : watched) {
    if (auto site = weak.lock()) site->Describe(now, &waiting);
  }
  return waiting;
}

std::shared_ptr<std::atomic<uint64_t>> Sites::CounterOf(uint64_t key, bool recv) {
  MutexLock lock(mutex_);
  auto& counter = counters_[{key, recv}];
  if (!counter) counter = std::make_shared<std::atomic<uint64_t>>(0);
  return counter;
}

void Sites::KeepFailure(uint64_t key, const Status& failure) {
  MutexLock lock(mutex_);
  failures_[key] = failure;
}

Status Sites::TakeFailure(uint64_t key) {
  MutexLock lock(mutex_);
  auto node = failures_.extract(key);
  return node ? std::move(node.mapped()) : Status{};
}

void Sites::Forget() {
  MutexLock lock(mutex_);
  counters_.clear();
  failures_.clear();
}

}  // namespace jaxring
