#include "cuda/host/group/group_health.h"

#include <stdexcept>

namespace jaxring::cuda {

void GroupHealth::Break(const std::string& why) {
  MutexLock lock(mutex_);
  if (broken_.empty()) broken_ = why;
  __atomic_store_n(abort_, 1u, __ATOMIC_RELEASE);
}

bool GroupHealth::Broken(std::string* why) const {
  MutexLock lock(mutex_);
  *why = broken_;
  return !broken_.empty();
}

void GroupHealth::ThrowIfBroken() const {
  if (std::string why; Broken(&why)) throw std::runtime_error(why);
}

std::string GroupHealth::Damage() const {
  MutexLock lock(mutex_);
  return damage_;
}

void GroupHealth::SetDamage(const std::string& what) {
  MutexLock lock(mutex_);
  damage_ = what;
}

void GroupHealth::Describe(uint32_t call, const std::string& what) {
  MutexLock lock(mutex_);
  calls_[static_cast<uint16_t>(call)] = what;
}

std::string GroupHealth::Described(uint64_t call) const {
  MutexLock lock(mutex_);
  const auto found = calls_.find(static_cast<uint16_t>(call));
  return found == calls_.end() ? "" : found->second;
}

}  // namespace jaxring::cuda
