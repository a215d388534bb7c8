// The flight recorder: the last operations of this process, with their times and outcomes. It is always on, and writes
// to a ring of fixed size. The ring lies in shared memory that other processes can read while this one lives, or in a
// file that remains when it dies.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "network/peers/heartbeat_data.h"
#include "plan/plan.h"

namespace jaxring {

enum class OperationState : uint32_t { kRunning = 0, kDone = 1, kFailed = 2 };

struct OperationRecord {
  using Time = std::chrono::steady_clock::time_point;
  uint64_t number = 0;      // counts the operations of this process, from 1; 0: no record
  uint64_t sequence = 0;    // counts the executions of its call site
  uint64_t key = 0;         // the operation's key, the same in all processes that take part
  std::string what, label;  // the plan's; empty if newer texts have overwritten them
  // When the first local rank arrived; when all had arrived and the plan was known; when the last lane ended.
  Time arrived, launched, ended;
  OperationState state = OperationState::kRunning;
};

class Recorder {
 public:
  static constexpr uint64_t kCapacity = 4096;
  static constexpr uint64_t kTextBytes = 1 << 20;
  static constexpr size_t kSamples = 256, kClocks = 256;

  // Records in unnamed shared memory, or in a new file of mode 0600; not `shared`: in memory of this process alone,
  // which is taken as it is used. Throws std::system_error if that cannot be made.
  explicit Recorder(const std::string& path = "", bool shared = true);
  ~Recorder();
  Recorder(const Recorder&) = delete;

  // The whole recorder, in the file's format.
  std::pair<const void*, size_t> memory() const;
  // Records the number of this process, the number of processes and the job's name, for the record's readers.
  void Name(int process, int processes, const std::string& job);
  // Returns the operation's number. A plan must be used with one recorder only.
  [[gnu::hot]] uint64_t Begin(const Plan& plan, uint64_t key, uint64_t sequence, OperationRecord::Time arrived,
                              OperationRecord::Time launched);
  // Does nothing for 0, or for an operation whose record has been overwritten.
  [[gnu::hot]] void End(uint64_t number, bool failed);
  // The records that are still there with numbers greater than `number`, oldest first.
  std::vector<OperationRecord> After(uint64_t number) const;
  std::optional<OperationRecord> Last() const;
  // The number of the latest record with this key; 0: there is none.
  uint64_t NumberOf(uint64_t key) const;
  std::optional<OperationRecord> At(uint64_t number) const;
  // The latest launches, oldest first.
  std::vector<LaunchTime> LastLaunches(size_t count) const;
  // The launch of that execution and its number, if there is a record of it.
  std::optional<std::pair<LaunchTime, uint64_t>> FindLaunch(uint64_t key, uint64_t sequence) const;

  // Keeps the last `kSamples` of them for the record's readers.
  void Keep(const ResourceSample& sample);
  // Keeps how another process's clock differs, for `kClocks` processes at most.
  void Keep(int process, const ClockOffset& clock);

 private:
  struct SampleSlot;
  struct ClockSlot;
  struct Header;
  struct Slot;
  Slot& slot(uint64_t number) const;
  OperationRecord Read(uint64_t number) const JAXRING_REQUIRES(mutex_);
  LaunchTime ReadLaunch(uint64_t number) const JAXRING_REQUIRES(mutex_);
  uint64_t Write(const Plan& plan) JAXRING_REQUIRES(mutex_);
  // The latest record with this key for whose number `matches` is true; 0: there is none. Reads the records since the
  // last call, and those whose keys have the same hash.
  template <class Matches>
  uint64_t Find(uint64_t key, Matches matches) const JAXRING_REQUIRES(mutex_);

  mutable Mutex mutex_;
  int fd_ = -1;
  Header* header_ JAXRING_PT_GUARDED_BY(mutex_) = nullptr;
  char* text_ JAXRING_PT_GUARDED_BY(mutex_) = nullptr;
  // An index of the records up to `indexed_`: by the key's hash the latest number, and by number the one before it with
  // that hash. Find adds what is new, so that recording an operation costs no more.
  mutable std::vector<uint64_t> newest_ JAXRING_GUARDED_BY(mutex_);
  mutable std::vector<uint64_t> before_ JAXRING_GUARDED_BY(mutex_);
  mutable uint64_t indexed_ JAXRING_GUARDED_BY(mutex_) = 0;
};

}  // namespace jaxring
