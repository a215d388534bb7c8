// One collective in flight: the buffers of this process's ranks, a state machine per lane, and the completions to call
// at the end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/operation/pages.h"
#include "plan/plan.h"
#include "transport/core/link.h"

namespace jaxring {

class FusedCall;
class Site;
struct PeerEnd;

// The hint for the user about a lost process, by how the connection with it ended.
const char* LostHint(Ending ending);
// The error code for it.
inline Code LostCode(Ending ending) { return ending == Ending::kDamaged ? Code::kDataLoss : Code::kUnavailable; }

// The hint for the user when memory cannot be allocated.
inline constexpr const char* kMemoryHint =
    "Free memory there, or raise the limit of that process or container (ulimit -a); JAXRING_BUFFSIZE and "
    "JAXRING_NSOCKS say how much is taken.";

// The key of an execution, equal in all processes: made of the plan's key and the execution's number under it.
[[gnu::hot]] uint64_t OperationKey(uint64_t plan_key, uint64_t sequence);
inline uint64_t OperationKey(const Plan& plan, uint64_t sequence) { return OperationKey(plan.key, sequence); }

using Completion = std::function<void(const Status&)>;

// One rank's blocks of a ragged collective, in elements. `expected` has the lengths that the caller says will arrive.
struct Extents {
  std::vector<uint64_t> in_offset, in_length, out_offset, out_length, expected;
  std::string invalid;  // why the numbers are invalid; fails the operation on all local ranks
};

// One rank's buffers of an epilogue.
struct EpilogueBuffers {
  struct Buffer {
    char* data;
    uint64_t bytes;
  };
  Buffer parameters;
  std::vector<Buffer> further;  // what the functions read
  std::vector<Buffer> states;   // where they leave their states; may be the memory of those of `further`
};

// One rank's buffers of an all-reduce in codes.
struct CodeBuffers {
  const uint32_t* key;  // as `RoundingOf` takes it
  float* error;         // what codes leave out, as many as values; null: nobody asks
};

// One rank's buffers. XLA owns them until `done` is called; nothing touches them afterwards.
struct Participant {
  int rank = 0;
  Pages pages = Pages::kPresent;  // of `out`
  const void* in = nullptr;
  void* out = nullptr;
  std::unique_ptr<Extents> extents;
  // If each block is a buffer of its own: the operand's blocks, then the result's; `in` and `out` are the first of
  // each. Null where blocks follow each other in memory.
  std::unique_ptr<char*[]> blocks;
  std::unique_ptr<EpilogueBuffers> epilogue;  // if the plan has one
  std::unique_ptr<CodeBuffers> codes;         // if the plan has codes
  Completion done;
  bool done_is_quick = false;        // the thread that ends the operation may call `done` directly
  bool waits = false;                // the thread that brought it does nothing else until the end
  bool on_launching_thread = false;  // its handler has not returned yet: completed there, without another thread
};

struct Flow {
  std::shared_ptr<SendLink> send;
  std::shared_ptr<RecvLink> recv;
  uint16_t sent = 0, received = 0;
};

// A shared block that the value of a step is in.
struct HeldSharedBlock {
  std::shared_ptr<SharedBlockPool> pool;
  int index = -1;                 // in the pool; -1: there is none
  StoreChoice* stores = nullptr;  // of a link to one of its readers
  uint32_t holds = 0;  // references to it: one for the lane, and one for each message that it has yet to send
};

struct Lane {
  uint32_t local = 0;  // index into Plan::locals and Operation::participants
  uint16_t number = 0;
  uint32_t step = 0, step_end = 0;
  uint64_t tile = 0, tiles = 0;
  // Progress inside a step that sends to several peers: the value is computed once, then copied to one peer after
  // another. If it was computed in a shared block, peers that can read the block get a reference to it instead.
  bool made = false;
  uint32_t sends_done = 0;
  const char* value = nullptr;
  HeldSharedBlock shared_block;
  std::vector<char> staging, scratch;
  std::vector<uint64_t> scratch_elements;
  std::vector<Flow> flows;
  uint64_t sent_bytes = 0;  // payload of messages to other processes that the engine has not counted yet
  bool done = false;
  // For failure reports: the rank that the current step waits for, and whether it waits to send.
  int waits_for = -1;
  bool waits_to_send = false;
  std::atomic<bool> busy{false};
};

class Operation;
// The failure of an operation in which rank `self` waits for rank `peer`, whose process has ended.
[[gnu::cold]] Status LostPeer(const Operation& op, int self, int peer, const PeerEnd& end);

class Operation {
 public:
  Operation(std::shared_ptr<const Plan> plan, uint64_t key, std::vector<Participant> participants,
            Clock::time_point deadline);
  // Whether it succeeded on its launching thread, and no other thread has seen it. Then it can be reused for the next
  // execution of its plan, which saves making its lanes and finding their links.
  [[gnu::hot]] bool Reusable() const;
  // Resets it for another execution. The caller has exchanged the participants before.
  [[gnu::hot]] void Reuse(uint64_t key, Clock::time_point deadline);

  const Plan& plan() const { return *plan_; }
  uint64_t key() const { return key_; }
  Clock::time_point deadline() const { return deadline_; }
  Clock::time_point begun() const {
    return deadline_ - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan_->timeout_s));
  }
  std::vector<std::unique_ptr<Lane>>& lanes() { return lanes_; }
  Participant& participant(uint32_t local) { return participants_[local]; }
  std::vector<Participant>& participants() { return participants_; }

  // The first failure counts. Lanes notice it at their next step.
  [[gnu::cold]] void Fail(Status status);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status status() const;
  // Returns true for the last lane.
  bool LaneDone() { return lanes_left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  bool finished() const { return lanes_left_.load(std::memory_order_acquire) == 0; }
  // Whether it has links, and all that it has used so far are shared memory. For the thread that executes its lanes.
  bool InSharedMemory() const;
  // The ranks of this process that wait for a message from a peer, or for room to send to it.
  struct Wait {
    int self, peer;
    bool to_send;
  };
  std::vector<Wait> Waits();
  // A number that changes whenever a lane has made progress.
  uint64_t Progress();
  // "rank 1 waits for a message from rank 0 (...)", for reports. Fills `rank_of_process` with a rank of each awaited
  // process.
  std::string DescribeWaits(std::map<int, int>* rank_of_process);
  // The call and the number of its execution, for messages.
  [[gnu::cold]] std::string What() const { return plan_->what + ", execution " + std::to_string(sequence); }

  // Tile `tile` of a chunk of one of this process's ranks; no elements past the chunk's end.
  struct Span {
    char* data = nullptr;
    uint64_t elements = 0;
  };
  [[gnu::hot]] Span Tile(uint32_t local, Buffer buffer, int32_t chunk, uint64_t tile) const;

  std::shared_ptr<void> owned_input;  // a buffered send's copy of its data
  // If operands of failures are saved (engine/records/operands.h): copies of the operands that results overwrite, and
  // the warning about NaN or infinity.
  std::vector<std::vector<char>> kept;
  std::string non_finite_text;
  uint64_t record = 0;       // its number in the recorder
  uint64_t sequence = 0;     // counts the executions of its call site, or of a queue of messages
  bool handed_over = false;  // workers have it, too; set before they do
  // The site that takes it back for reuse. The site outlives the launch.
  struct Home {
    Site* site = nullptr;
    int group = 0;
    size_t collective = 0;
  } home;
  // Has the participants' completions if the operation belongs to a fused call; null once the operation has ended.
  std::shared_ptr<FusedCall> fused;

 private:
  std::shared_ptr<const Plan> plan_;
  uint64_t key_;
  Clock::time_point deadline_;
  std::vector<Participant> participants_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::atomic<int> lanes_left_;
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  Status status_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
