// The last operations of this process: what they were, when they began and how they ended. A ring of fixed size that is
// always written, so that a failure or a profile can be looked at afterwards.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace jaxring {

enum class OperationState : uint8_t { kRunning = 0, kDone = 1, kFailed = 2 };

struct OperationRecord {
  using Time = std::chrono::steady_clock::time_point;
  uint64_t number = 0;                       // counts the operations of this process, from 1; 0: no record
  uint64_t sequence = 0;                     // counts the executions of its call site
  std::shared_ptr<const std::string> label;  // the plan's
  Time arrived, launched, ended;  // the first local rank came; all were there and the plan known; the last lane ended
  OperationState state = OperationState::kRunning;
};

class Recorder {
 public:
  static constexpr uint64_t kCapacity = 4096;

  // Returns the operation's number.
  uint64_t Begin(std::shared_ptr<const std::string> label, uint64_t sequence, OperationRecord::Time arrived);
  // Does nothing for 0, or for an operation whose record has been overwritten.
  void End(uint64_t number, bool failed);
  // The records with greater numbers that are still there, oldest first.
  std::vector<OperationRecord> After(uint64_t number) const;

 private:
  mutable std::mutex mutex_;
  uint64_t last_ = 0;
  std::vector<OperationRecord> ring_ = std::vector<OperationRecord>(kCapacity);  // number n is at n % kCapacity
};

}  // namespace jaxring
