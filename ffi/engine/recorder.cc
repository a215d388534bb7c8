#include "engine/recorder.h"

#include <algorithm>
#include <utility>

namespace jaxring {

uint64_t Recorder::Begin(std::shared_ptr<const std::string> label, uint64_t sequence, OperationRecord::Time arrived) {
  const auto now = std::chrono::steady_clock::now();
  std::lock_guard lock(mutex_);
  const uint64_t number = ++last_;
  ring_[number % kCapacity] = {number, sequence, std::move(label), arrived, now, {}, OperationState::kRunning};
  return number;
}

void Recorder::End(uint64_t number, bool failed) {
  if (number == 0) return;
  const auto now = std::chrono::steady_clock::now();
  std::lock_guard lock(mutex_);
  OperationRecord& record = ring_[number % kCapacity];
  if (record.number != number) return;
  record.ended = now;
  record.state = failed ? OperationState::kFailed : OperationState::kDone;
}

std::vector<OperationRecord> Recorder::After(uint64_t number) const {
  std::lock_guard lock(mutex_);
  const uint64_t oldest = last_ < kCapacity ? 1 : last_ - kCapacity + 1;
  std::vector<OperationRecord> records;
  for (uint64_t n = std::max(oldest, number + 1); n <= last_; ++n) records.push_back(ring_[n % kCapacity]);
  return records;
}

}  // namespace jaxring
