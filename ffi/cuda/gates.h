// Where ranks that address each other's memory meet: at the begin and the end of every lane. See Gate in tables.h.
//
// A lane that fails reaches the end too, with a mark, and stays for a while until its peers have seen that: its buffers
// are theirs to write until they have. A mark never goes away; the communicator is of no more use.
#pragma once

#include "ffi/cuda/lane.h"

namespace jaxring::cuda {

inline constexpr uint64_t kFailedMark = uint64_t{1} << 63;

JAXRING_DEVICE Gate& Theirs(const Lane& lane, uint32_t member) { return lane.args.members[member].theirs[lane.number]; }
JAXRING_DEVICE const Gate& Ours(const Lane& lane, uint32_t member) {
  return lane.args.members[member].ours[lane.number];
}

// Tells the members that this rank's buffers are ready and where they are, and finds out the same of them.
// To be called by all threads; the same answer for all.
JAXRING_DEVICE bool OpenGates(Lane& lane) {
  const Args& args = lane.args;
  if (args.member_count == 0) return true;
  lane.epoch = args.epochs[2 * lane.number] + 1;
  bool failed = false;
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    Gate& gate = Theirs(lane, m);
    StoreRelaxed(&gate.in_region, args.in_region);
    StoreRelaxed(&gate.in_offset, args.in_offset);
    StoreRelaxed(&gate.out_region, args.out_region);
    StoreRelaxed(&gate.out_offset, args.out_offset);
    StoreRelease(&gate.begin, lane.epoch);
  }
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    const Member& member = args.members[m];
    const Gate& gate = Ours(lane, m);
    if (!AwaitAtLeast(lane, Wait::kBegin, member.rank, &gate.begin, lane.epoch)) {
      failed = true;
      continue;
    }
    const uint64_t in = member.regions[LoadRelaxed(&gate.in_region)] + LoadRelaxed(&gate.in_offset);
    const uint64_t out = member.regions[LoadRelaxed(&gate.out_region)] + LoadRelaxed(&gate.out_offset);
    lane.shared.member_in[m] = reinterpret_cast<char*>(in);
    lane.shared.member_out[m] = reinterpret_cast<char*>(out);
  }
  return !SyncBlockOr(failed);
}

// To be called by all threads, after the lane's last access to any buffer. False if this lane or a member's failed.
JAXRING_DEVICE bool CloseGates(Lane& lane, bool failed) {
  const Args& args = lane.args;
  if (args.member_count == 0) return !failed;
  // Every thread's accesses come before any thread's release.
  failed = SyncBlockOr(failed);
  const uint64_t mark = failed ? kFailedMark : 0;
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    StoreRelease(&Theirs(lane, m).end, lane.epoch | mark);
  }
  // A failed lane waits as long again, whatever the abort word says: that a peer is late is no reason to let it write
  // into memory that is no longer ours.
  const uint64_t grace = Clock() + args.timeout_ns;
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    const uint64_t* end = &Ours(lane, m).end;
    const int32_t rank = args.members[m].rank;
    if (failed) {
      for (uint32_t turn = 1; LoadAcquire(end) < lane.epoch; ++turn) {
        if (turn % kPatience == 0 && Clock() > grace) break;
        Pause(turn);
      }
    } else if (!AwaitAtLeast(lane, Wait::kEnd, rank, end, lane.epoch)) {
      failed = true;
    } else if (LoadRelaxed(end) & kFailedMark) {
      Report(lane, Fault::kPeerFailed, Wait::kEnd, rank, lane.epoch);
      failed = true;
    }
  }
  failed = SyncBlockOr(failed);
  if (!failed && ThreadIndex() == 0) args.epochs[2 * lane.number] = lane.epoch;
  return !failed;
}

}  // namespace jaxring::cuda
