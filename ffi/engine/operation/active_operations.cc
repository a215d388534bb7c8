#include "engine/operation/active_operations.h"

namespace jaxring {

size_t ActiveOperations::Add(std::span<std::shared_ptr<Operation>> ops, const FailureLog& known) {
  size_t lanes = 0;
  MutexLock lock(mutex_);
  for (std::shared_ptr<Operation>& op : ops) {
    if (op->finished()) continue;
    op->handed_over = true;
    lanes += op->lanes().size();
    operations_.push_back(op);
    // A failure that is recorded later finds the operation here.
    if (const auto failure = known.Find(op->key())) op->Fail(*failure);
    count_.fetch_add(1, std::memory_order_release);
  }
  if (lanes != 0) version_.fetch_add(1, std::memory_order_release);
  return lanes;
}

void ActiveOperations::Remove(const std::shared_ptr<Operation>& op) {
  MutexLock lock(mutex_);
  std::erase(operations_, op);
  version_.fetch_add(1, std::memory_order_release);
  count_.fetch_sub(1, std::memory_order_release);
}

ActiveOperations::List ActiveOperations::Get(uint64_t* version) {
  MutexLock lock(mutex_);
  if (version != nullptr) *version = version_.load(std::memory_order_relaxed);
  return operations_;
}

void ActiveOperations::Fail(uint64_t key, const Status& failure) {
  MutexLock lock(mutex_);
  for (auto& op : operations_) {
    if (op->key() == key) op->Fail(failure);
  }
}

}  // namespace jaxring
