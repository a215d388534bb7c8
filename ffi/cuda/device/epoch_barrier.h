// Synchronises ranks that address each other's memory, at the begin and the end of every lane. See EpochBarrier in
// tables.h.
//
// A lane that fails stores its end, too, with a failure mark that is never cleared, since the communicator cannot be
// used any more. Its buffers are its own again only when no member can write to them. So it waits until the members
// that have begun have ended. A member that has not begun will see the mark: each side first stores its word, then
// executes a fence, then loads the other's word, so at least one of them sees the other's.
#pragma once

#include "cuda/device/lane.h"

namespace jaxring::cuda {

inline constexpr uint64_t kFailedMark = uint64_t{1} << 63;

JAXRING_DEVICE EpochBarrier& Theirs(const Lane& lane, uint32_t member) {
  return lane.args.members[member].theirs[lane.number];
}
JAXRING_DEVICE const EpochBarrier& Ours(const Lane& lane, uint32_t member) {
  return lane.args.members[member].ours[lane.number];
}

// Returns whether a member has failed in this launch or before, and reports it.
JAXRING_DEVICE bool MemberFailed(const Lane& lane, const EpochBarrier& barrier, Wait wait, int32_t rank) {
  if (!(LoadRelaxed(&barrier.end) & kFailedMark)) return false;
  Report(lane, Fault::kPeerFailed, wait, rank, lane.epoch);
  return true;
}

JAXRING_DEVICE bool AwaitBegin(const Lane& lane, const EpochBarrier& barrier, int32_t rank) {
  for (uint32_t turn = 1; LoadAcquire(&barrier.begin) < lane.epoch; ++turn) {
    if (turn % kPatience == 0) {
      if (MemberFailed(lane, barrier, Wait::kBegin, rank)) return false;
      if (GivesUp(lane, Wait::kBegin, rank, lane.epoch)) return false;
    }
    Pause(turn);
  }
  return !MemberFailed(lane, barrier, Wait::kBegin, rank);
}

// Tells the members that this rank's buffers are ready and where they are, and waits for the same from them. To be
// called by all threads; returns the same for all.
JAXRING_DEVICE bool EnterBarrier(Lane& lane) {
  const Args& args = lane.args;
  if (args.member_count == 0) return true;
  lane.epoch = args.epochs[2 * lane.number] + 1;
  bool failed = false;
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    EpochBarrier& barrier = Theirs(lane, m);
    StoreRelaxed(&barrier.in_region, args.in_region);
    StoreRelaxed(&barrier.in_offset, args.in_offset);
    StoreRelaxed(&barrier.out_region, args.out_region);
    StoreRelaxed(&barrier.out_offset, args.out_offset);
    StoreRelease(&barrier.begin, lane.epoch);
    FenceAll();  // takes no extra time, since the members' words are in flight meanwhile
  }
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    const Member& member = args.members[m];
    const EpochBarrier& barrier = Ours(lane, m);
    if (!AwaitBegin(lane, barrier, member.rank)) {
      failed = true;
      continue;
    }
    const uint64_t in = LoadEntry(member.regions + LoadRelaxed(&barrier.in_region)) + LoadRelaxed(&barrier.in_offset);
    const uint64_t out =
        LoadEntry(member.regions + LoadRelaxed(&barrier.out_region)) + LoadRelaxed(&barrier.out_offset);
    lane.shared.member_in[m] = reinterpret_cast<char*>(in);
    lane.shared.member_out[m] = reinterpret_cast<char*>(out);
  }
  return !SyncBlockOr(failed);
}

// Waits until a member cannot access this rank's buffers any more, whatever the abort word says: a late peer must not
// write into memory that this rank no longer owns. If a member has begun and does not end, this waits for another
// timeout.
JAXRING_DEVICE void AwaitGone(const Lane& lane, const EpochBarrier& barrier) {
  if (LoadAcquire(&barrier.begin) < lane.epoch) return;
  const uint64_t grace = Clock() + lane.args.timeout_ns;
  for (uint32_t turn = 1; LoadAcquire(&barrier.end) < lane.epoch; ++turn) {
    if (turn % kPatience == 0 && Clock() > grace) return;
    Pause(turn);
  }
}

// To be called by all threads, after the lane's last access to any buffer. Returns false if this lane or a member's has
// failed.
JAXRING_DEVICE bool LeaveBarrier(Lane& lane, bool failed) {
  const Args& args = lane.args;
  if (args.member_count == 0) return !failed;
  // Orders every thread's accesses before any thread's release.
  failed = SyncBlockOr(failed);
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    StoreRelease(&Theirs(lane, m).end, lane.epoch | (failed ? kFailedMark : 0));
  }
  if (failed) FenceAll();
  bool lost = failed;
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    const EpochBarrier& barrier = Ours(lane, m);
    const int32_t rank = args.members[m].rank;
    if (!lost && AwaitAtLeast(lane, Wait::kEnd, rank, &barrier.end, lane.epoch)) {
      lost = MemberFailed(lane, barrier, Wait::kEnd, rank);
    } else {
      lost = true;
      AwaitGone(lane, barrier);
    }
  }
  failed = SyncBlockOr(lost);
  if (!failed && ThreadIndex() == 0) args.epochs[2 * lane.number] = lane.epoch;
  return !failed;
}

}  // namespace jaxring::cuda
