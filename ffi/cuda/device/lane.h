// A lane's state within its block: the threads' shared data, their waits, and the report of a failed wait.
//
// Every wait has a deadline. A thread that gives up still reaches the block's next barrier, where all threads learn of
// it and leave together, so no thread of a block is ever left at a barrier.
#pragma once

#include "cuda/device/device.h"
#include "cuda/device/tables.h"

namespace jaxring::cuda {

enum class Form : uint32_t {
  kRaw = 0,         // the dtype's elements, in own memory
  kFar,             // the same in a peer's memory, for stores
  kScratch,         // accumulators, in the layout of Simple's messages
  kMessage,         // a slot that holds the dtype's elements
  kPartialMessage,  // a slot that holds accumulators
};

// A source or a target of a step.
struct Operand {
  char* at;
  uint64_t number;  // of the message
  Form form;
  uint32_t connection;
  int32_t peer;  // sends or receives the message; for Status
};

struct Shared {
  Operand sources[kMaxStepPeers];
  Operand targets[kMaxStepPeers + 1];  // the local destination and the peers
  char* member_in[kMaxStepPeers];
  char* member_out[kMaxStepPeers];
  uint64_t scratch_elements[kMaxScratch];
};

struct Lane {
  const Args& args;
  Shared& shared;
  uint32_t number;
  uint64_t began, deadline;
  uint64_t epoch = 0;
  uint32_t step = 0, tile = 0;

  JAXRING_DEVICE Lane(const Args& args, Shared& shared)
      : args(args), shared(shared), number(BlockIndex()), began(Clock()), deadline(began + args.failure.timeout_ns) {}

  JAXRING_DEVICE Connection& ConnectionOf(uint32_t route) const {
    return args.group.connections[static_cast<uint64_t>(number) * args.group.connections_per_lane + route];
  }
};

JAXRING_DEVICE void Report(const Lane& lane, Fault fault, Wait wait, int32_t peer, uint64_t number) {
  const Args& args = lane.args;
  Status& status = *args.failure.status;
  if (!Claim(&status.claimed)) return;
  status.rank = args.group.rank;
  status.peer = peer;
  status.wait = static_cast<uint32_t>(wait);
  status.lane = lane.number;
  status.step = lane.step;
  status.tile = lane.tile;
  status.number = number;
  status.waited_ns = Clock() - lane.began;
  StoreRelease(&status.fault, static_cast<uint32_t>(fault));
  // Last, so that no lane that this aborts reports before the lane that has failed.
  if (args.failure.spread_faults) StoreRelaxed(const_cast<uint32_t*>(args.failure.abort), 1u);
}

// Returns whether the wait must end, and reports why. `in_other_call`: whether the peer is known to be in another call,
// `call`.
JAXRING_DEVICE bool GivesUp(const Lane& lane, Wait wait, int32_t peer, uint64_t number, bool in_other_call = false,
                            uint32_t call = 0) {
  Fault fault = Fault::kNone;
  if (in_other_call) {
    fault = Fault::kOtherCall;
    number = call;
  } else if (LoadRelaxed(lane.args.failure.abort) != 0) {
    fault = Fault::kAborted;
  } else if (Clock() > lane.deadline) {
    fault = Fault::kTimeout;
  }
  if (fault == Fault::kNone) return false;
  Report(lane, fault, wait, peer, number);
  return true;
}

// A polling loop reads the abort word and the clock once in this many rounds, since reading the abort word may cross
// PCIe.
inline constexpr uint32_t kPatience = 256;

// Polls until `ready`. Returns false if it gave up.
template <class Ready>
JAXRING_DEVICE bool Await(const Lane& lane, Wait wait, int32_t peer, uint64_t number, Ready ready) {
  for (uint32_t turn = 1; !ready(); ++turn) {
    if (turn % kPatience == 0 && GivesUp(lane, wait, peer, number)) return false;
    Pause(turn);
  }
  return true;
}

// Waits for a message by its slot's counter. Returns false if it gave up, or if the peer is in another call.
JAXRING_DEVICE bool AwaitMessage(const Lane& lane, int32_t peer, const uint64_t* arrived, uint64_t number) {
  uint64_t word = 0;
  const auto came = [&] { return Stamp::Has(word = LoadAcquire(arrived), number); };
  if (!Await(lane, Wait::kMessage, peer, number, came)) return false;
  if (Stamp::CallOf(word) == Stamp::ShortCall(lane.args.call.number)) return true;
  Report(lane, Fault::kOtherCall, Wait::kMessage, peer, Stamp::CallOf(word));
  return false;
}

JAXRING_DEVICE bool AwaitAtLeast(const Lane& lane, Wait wait, int32_t peer, const uint64_t* word, uint64_t least) {
  return Await(lane, wait, peer, least, [=] { return LoadAcquire(word) >= least; });
}

// The last that each lane of a launch does; called by all threads with the same value. If a lane has failed, the launch
// traps, so that the stream's later work does not use incomplete data. That ends the device's context and the other
// lanes with it. So it waits until these have ended, too: until then they may serve peers, and tell them of the
// failure. A launch that has not failed reads nothing here and waits for nothing.
JAXRING_DEVICE void LeaveLaunch(const Args& args, bool good) {
  if (!args.failure.trap || ThreadIndex() != 0) return;
  // What a lane has told its peers before is out of its hands when the trap comes.
  if (!good) FenceAll();
  CountUp(&args.state->ended);
  if (good) return;
  const uint64_t deadline = Clock() + args.failure.timeout_ns;
  // Launches come one after another, with equally many lanes.
  for (uint32_t turn = 1; LoadRelaxed(&args.state->ended) % args.shape.lanes != 0; ++turn) {
    if (turn % kPatience == 0 && Clock() > deadline) break;
    Pause(turn);
  }
  Trap();
}

}  // namespace jaxring::cuda
