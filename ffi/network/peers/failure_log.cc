#include "network/peers/failure_log.h"

#include <algorithm>

namespace jaxring {
namespace {

constexpr size_t kKept = 1024;

}  // namespace

bool FailureLog::Record(uint64_t key, const Status& failure) {
  NoteTrouble();
  MutexLock lock(mutex_);
  if (!failures_.emplace(key, failure).second) return false;
  order_.push_back(key);
  if (order_.size() > kKept) {
    failures_.erase(order_.front());
    order_.pop_front();
  }
  return true;
}

std::optional<Status> FailureLog::Find(uint64_t key) const {
  MutexLock lock(mutex_);
  const auto it = failures_.find(key);
  return it == failures_.end() ? std::nullopt : std::optional(it->second);
}

std::vector<std::pair<uint64_t, Status>> FailureLog::Last(size_t count) const {
  MutexLock lock(mutex_);
  std::vector<std::pair<uint64_t, Status>> last;
  for (size_t i = order_.size() - std::min(count, order_.size()); i < order_.size(); ++i) {
    last.emplace_back(order_[i], failures_.at(order_[i]));
  }
  return last;
}

void FailureLog::Clear() {
  MutexLock lock(mutex_);
  failures_.clear();
  order_.clear();
  troubled_ = false;
}

}  // namespace jaxring
