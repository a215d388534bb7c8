#include "engine/halting.h"

namespace jaxring {

Halting::Halted Halting::Halt(const std::string& reason, bool tell) {
  MutexLock lock(mutex_);
  const bool news = !halted_.load(std::memory_order_relaxed);
  if (news) reason_ = reason;
  halted_.store(true);
  tell = tell && !told_;
  told_ |= tell;
  return {news, tell, reason_};
}

bool Halting::End(const std::string& reason) {
  MutexLock lock(mutex_);
  if (ending_) return false;
  ending_ = true;
  reason_ = reason;
  halted_.store(true, std::memory_order_release);
  return true;
}

std::string Halting::Known() {
  MutexLock lock(mutex_);
  return reason_;
}

void Halting::BeginEpoch() {
  MutexLock lock(mutex_);
  told_ = false;
}

void Halting::Resume() {
  MutexLock lock(mutex_);
  if (!ending_) halted_.store(false);
}

}  // namespace jaxring
