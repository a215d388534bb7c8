// One collective in flight: the buffers of this process's ranks, a state machine per lane, and who waits for the end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/operation/pages.h"
#include "plan/plan.h"
#include "transport/core/link.h"

namespace jaxring {

class FusedCall;
class Site;

using Clock = std::chrono::steady_clock;

// What to do about a process that is lost, by how the connection with it ended.
const char* LostHint(Ending ending);
// What the error of that is.
inline Code LostCode(Ending ending) { return ending == Ending::kDamaged ? Code::kDataLoss : Code::kUnavailable; }

// What is known of the end of a process: why, empty while nothing is known, and what it was last seen in, as a
// sentence.
struct PeerEnd {
  std::string reason;
  Ending ending = Ending::kNoWord;
  std::string last_seen;
};

// What to do about memory that is not to be had.
inline constexpr const char* kMemoryHint =
    "Free memory there, or raise the limit of that process or container (ulimit -a); JAXRING_BUFFSIZE and "
    "JAXRING_NSOCKS say how much is taken.";

// Names an execution in all processes: the plan's key and the execution's number under it.
[[gnu::hot]] uint64_t OperationKey(uint64_t plan_key, uint64_t sequence);
inline uint64_t OperationKey(const Plan& plan, uint64_t sequence) { return OperationKey(plan.key, sequence); }

using Completion = std::function<void(const Status&)>;

// Where a ragged collective's blocks lie, in elements, for one rank; `expected` is what its user says will come.
struct Extents {
  std::vector<uint64_t> in_offset, in_length, out_offset, out_length, expected;
  std::string invalid;  // why these numbers cannot be served; fails the operation on all local ranks
};

// One rank's buffers. XLA owns them until `done` is called; nothing touches them afterwards.
struct Participant {
  int rank = 0;
  const void* in = nullptr;
  void* out = nullptr;
  Pages pages = Pages::kPresent;  // of `out`
  std::unique_ptr<Extents> extents;
  Completion done;
  bool done_is_quick = false;        // whoever ends the operation may call it at once
  bool waits = false;                // whoever brought it does nothing else until the end
  bool on_launching_thread = false;  // its handler has not returned yet: complete it there, without another thread
};

struct Flow {
  std::shared_ptr<SendLink> send;
  std::shared_ptr<RecvLink> recv;
  uint16_t sent = 0, received = 0;
};

struct Lane {
  uint32_t local = 0;  // index into Plan::locals and Operation::participants
  uint16_t number = 0;
  uint32_t step = 0, step_end = 0;
  uint64_t tile = 0, tiles = 0;
  // Progress inside a step that sends to several peers: the value is made once, then copied to one after another. Where
  // it was made in a block, those who can read that are told of it instead.
  bool made = false;
  uint32_t sends_done = 0;
  const char* value = nullptr;
  std::shared_ptr<BlockPool> blocks;
  int block = -1;
  uint32_t holds = 0;  // of the block: one for itself, and one for each message that it has yet to send
  std::vector<char> staging, scratch;
  std::vector<uint64_t> scratch_elements;
  std::vector<Flow> flows;
  bool done = false;
  // What a failure report says: the step that waits and for whom.
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
  // Whether it has ended rightly on the thread that launched it, unseen by any other: then it can be the next execution
  // of its plan, too, which finds its lanes and their links made.
  [[gnu::hot]] bool MayServeAgain() const;
  // Is that. The participants are the caller's to exchange before.
  [[gnu::hot]] void Again(uint64_t key, Clock::time_point deadline);

  const Plan& plan() const { return *plan_; }
  uint64_t key() const { return key_; }
  Clock::time_point deadline() const { return deadline_; }
  Clock::time_point begun() const {
    return deadline_ - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan_->timeout_s));
  }
  std::vector<std::unique_ptr<Lane>>& lanes() { return lanes_; }
  Participant& participant(uint32_t local) { return participants_[local]; }
  std::vector<Participant>& participants() { return participants_; }

  // The first failure wins; lanes notice at their next step.
  [[gnu::cold]] void Fail(Status status);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status status() const;
  // True for the lane that was last.
  bool LaneDone() { return lanes_left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  bool finished() const { return lanes_left_.load(std::memory_order_acquire) == 0; }
  // Ranks of this process that wait, each for a rank: for a message from it, or for room to send to it.
  struct Wait {
    int self, peer;
    bool to_send;
  };
  std::vector<Wait> Waits();
  // Another number whenever a lane has moved.
  uint64_t Progress();
  // "rank 1 waits for a message from rank 0 (...)", for reports; and a rank of each process that is waited for.
  std::string DescribeWaits(std::map<int, int>* rank_of_process);
  // The call and which execution of it, for messages.
  [[gnu::cold]] std::string What() const { return plan_->what + ", execution " + std::to_string(sequence); }

  // Tile `tile` of a chunk of one of this process's ranks. Empty tiles have no elements.
  struct Span {
    char* data = nullptr;
    uint64_t elements = 0;
  };
  [[gnu::hot]] Span Tile(uint32_t local, Buffer buffer, int32_t chunk, uint64_t tile) const;

  std::shared_ptr<void> owned_input;  // a buffered send's copy
  // Operands that results overwrite, and what is wrong with its data, where failures are saved
  // (engine/records/operands.h).
  std::vector<std::vector<char>> kept;
  std::string non_finite_text;
  uint64_t record = 0;       // its number in the recorder
  uint64_t sequence = 0;     // counts the executions of its call site, or of a queue of messages
  bool handed_over = false;  // other threads know it; set before they do
  // Who takes it back for its plan's next execution, once it has ended so that it may serve again; outlives the launch.
  struct Home {
    Site* site = nullptr;
    int group = 0;
    size_t collective = 0;
  } home;
  // Has the participants' completions where several operations are one call's; until it has ended.
  std::shared_ptr<FusedCall> fused;

 private:
  std::shared_ptr<const Plan> plan_;
  uint64_t key_;
  Clock::time_point deadline_;
  std::vector<Participant> participants_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::atomic<int> lanes_left_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  Status status_;
};

}  // namespace jaxring
