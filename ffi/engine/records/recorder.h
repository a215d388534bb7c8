// The last operations of this process: what they were, when they began and how they ended. A ring of fixed size that is
// always written, in memory that others can read while this process lives, or in a file that stays when it dies.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace jaxring {

enum class OperationState : uint32_t { kRunning = 0, kDone = 1, kFailed = 2 };

struct OperationRecord {
  using Time = std::chrono::steady_clock::time_point;
  uint64_t number = 0;            // counts the operations of this process, from 1; 0: no record
  uint64_t sequence = 0;          // counts the executions of its call site
  uint64_t key = 0;               // the operation's, the same in all processes that take part
  std::string what, label;        // the plan's; empty where newer ones have taken their room
  Time arrived, launched, ended;  // the first local rank came; all were there and the plan known; the last lane ended
  OperationState state = OperationState::kRunning;
};

class Recorder {
 public:
  static constexpr uint64_t kCapacity = 4096;
  static constexpr uint64_t kTextBytes = 1 << 20;

  // In unnamed shared memory, or in a new file of mode 0600. Throws where that cannot be made.
  explicit Recorder(const std::string& path = "");
  ~Recorder();
  Recorder(const Recorder&) = delete;

  // The whole of it, as it is in a file.
  std::pair<const void*, size_t> memory() const;
  // Which process of which job this is, as far as the record's readers are concerned: also before its first operation.
  void Name(int process, int processes, const std::string& job);
  // Returns the operation's number. A plan belongs to one recorder.
  [[gnu::hot]] uint64_t Begin(const Plan& plan, uint64_t key, uint64_t sequence, OperationRecord::Time arrived,
                              OperationRecord::Time launched);
  // Does nothing for 0, or for an operation whose record has been overwritten.
  [[gnu::hot]] void End(uint64_t number, bool failed);
  // The records with greater numbers that are still there, oldest first.
  std::vector<OperationRecord> After(uint64_t number) const;
  std::optional<OperationRecord> Last() const;
  // Whether an operation with this key is among them.
  bool Knows(uint64_t key) const;

 private:
  struct Header;
  struct Slot;
  Slot& slot(uint64_t number) const;
  OperationRecord Read(uint64_t number) const;
  uint64_t Write(const Plan& plan);

  mutable std::mutex mutex_;
  int fd_ = -1;
  Header* header_ = nullptr;
  char* text_ = nullptr;
};

}  // namespace jaxring
