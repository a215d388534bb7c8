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
  return lane.args.group.members[member].theirs[lane.number];
}
JAXRING_DEVICE const EpochBarrier& Ours(const Lane& lane, uint32_t member) {
  return lane.args.group.members[member].ours[lane.number];
}

// Returns whether a member has failed in this launch or before, and reports it.
JAXRING_DEVICE bool MemberFailed(const Lane& lane, const EpochBarrier& barrier, Wait wait, int32_t rank) {
  if (!(LoadRelaxed(&barrier.end) & kFailedMark)) return false;
  Report(lane, Fault::kPeerFailed, wait, rank, lane.epoch);
  return true;
}

inline constexpr uint32_t kEpochMask = 0xffff;

JAXRING_DEVICE Vec BegunLine(const Lane& lane, uint64_t place) {
  const uint32_t epoch = static_cast<uint32_t>(lane.epoch) & kEpochMask, call = lane.args.call.number;
  return {{static_cast<uint32_t>(place), epoch | call << 16, static_cast<uint32_t>(place >> 32),
           epoch | (call & ~kEpochMask)}};
}
JAXRING_DEVICE bool Begun(const Lane& lane, const Vec& line) {
  const uint32_t epoch = static_cast<uint32_t>(lane.epoch);
  return (((line.w[1] ^ epoch) | (line.w[3] ^ epoch)) & kEpochMask) == 0;
}
JAXRING_DEVICE uint32_t CallOf(const Vec& line) { return line.w[1] >> 16 | (line.w[3] & ~kEpochMask); }
JAXRING_DEVICE uint64_t PlaceOf(const Vec& line) { return static_cast<uint64_t>(line.w[2]) << 32 | line.w[0]; }

// Waits until the member has begun and gives where its buffers are. An acquire in every turn would empty the
// first-level cache of all that runs on the multiprocessor, so the loop has none, and one follows it.
JAXRING_DEVICE bool AwaitBegun(const Lane& lane, const EpochBarrier& barrier, int32_t rank, uint64_t (&places)[2]) {
  Vec in = LoadBegun(barrier.begun[0]), out = LoadBegun(barrier.begun[1]);
  bool failed = false;
  for (uint32_t turn = 1; !Begun(lane, in) || !Begun(lane, out); ++turn) {
    if (turn % kPatience == 0) {
      // A member may have failed because it is in another call, which its lines say. They come before its mark.
      if (failed && MemberFailed(lane, barrier, Wait::kBegin, rank)) return false;
      failed = (LoadAcquire(&barrier.end) & kFailedMark) != 0;
      if (GivesUp(lane, Wait::kBegin, rank, lane.epoch)) return false;
    }
    Pause(turn);
    in = LoadBegun(barrier.begun[0]);
    out = LoadBegun(barrier.begun[1]);
  }
  AcquireBegun(barrier.begun[0]);
  AcquireBegun(barrier.begun[1]);
  if (CallOf(in) != lane.args.call.number) {
    Report(lane, Fault::kOtherCall, Wait::kBegin, rank, CallOf(in));
    return false;
  }
  places[0] = PlaceOf(in);
  places[1] = PlaceOf(out);
  return !MemberFailed(lane, barrier, Wait::kBegin, rank);
}

// Tells the members that this rank's buffers are ready and where they are, and waits for the same from them. To be
// called by all threads; returns the same for all.
JAXRING_DEVICE bool EnterBarrier(Lane& lane) {
  const Args& args = lane.args;
  if (args.group.member_count == 0) return true;
  lane.epoch = args.group.epochs[2 * lane.number] + 1;
  const Vec in = BegunLine(lane, PackedPlace(args.buffers.in_region, args.buffers.in_offset));
  const Vec out = BegunLine(lane, PackedPlace(args.buffers.out_region, args.buffers.out_offset));
  bool failed = false;
  for (uint32_t m = ThreadIndex(); m < args.group.member_count; m += Threads()) {
    EpochBarrier& barrier = Theirs(lane, m);
    StoreBegun(barrier.begun[0], in);
    StoreBegun(barrier.begun[1], out);
    // For the memory that a rank takes back after a failure. A rank that traps takes none back.
    if (!args.failure.trap) FenceAll();
  }
  for (uint32_t m = ThreadIndex(); m < args.group.member_count; m += Threads()) {
    const Member& member = args.group.members[m];
    uint64_t places[2];
    if (!AwaitBegun(lane, Ours(lane, m), member.rank, places)) {
      failed = true;
      continue;
    }
    constexpr uint64_t kOffset = (uint64_t{1} << kOffsetBits) - 1;
    const uint64_t from = LoadEntry(member.regions + (places[0] >> kOffsetBits)) + (places[0] & kOffset);
    const uint64_t to = LoadEntry(member.regions + (places[1] >> kOffsetBits)) + (places[1] & kOffset);
    lane.shared.member_in[m] = reinterpret_cast<char*>(from);
    lane.shared.member_out[m] = reinterpret_cast<char*>(to);
  }
  return !SyncBlockOr(failed);
}

// Waits until a member cannot access this rank's buffers any more, whatever the abort word says: a late peer must not
// write into memory that this rank no longer owns. If a member has begun and does not end, this waits for another
// timeout.
JAXRING_DEVICE void AwaitGone(const Lane& lane, const EpochBarrier& barrier) {
  const bool met = LoadAcquire(&barrier.met) >= lane.epoch;
  if (!met && !Begun(lane, LoadBegun(barrier.begun[0]))) return;
  const uint64_t grace = Clock() + lane.args.failure.timeout_ns;
  for (uint32_t turn = 1; LoadAcquire(&barrier.end) < lane.epoch; ++turn) {
    if (turn % kPatience == 0 && Clock() > grace) return;
    Pause(turn);
  }
}

// To be called by all threads, after the lane's last access to any buffer. Returns false if this lane or a member's has
// failed.
JAXRING_DEVICE bool LeaveBarrier(Lane& lane, bool failed) {
  const Args& args = lane.args;
  if (args.group.member_count == 0) return !failed;
  // Orders every thread's accesses before any thread's release.
  failed = SyncBlockOr(failed);
  for (uint32_t m = ThreadIndex(); m < args.group.member_count; m += Threads()) {
    StoreRelease(&Theirs(lane, m).end, lane.epoch | (failed ? kFailedMark : 0));
  }
  if (failed) FenceAll();
  bool lost = failed;
  for (uint32_t m = ThreadIndex(); m < args.group.member_count; m += Threads()) {
    const EpochBarrier& barrier = Ours(lane, m);
    const int32_t rank = args.group.members[m].rank;
    if (!lost && AwaitAtLeast(lane, Wait::kEnd, rank, &barrier.end, lane.epoch)) {
      lost = MemberFailed(lane, barrier, Wait::kEnd, rank);
    } else {
      lost = true;
      AwaitGone(lane, barrier);
    }
  }
  failed = SyncBlockOr(lost);
  if (!failed && ThreadIndex() == 0) args.group.epochs[2 * lane.number] = lane.epoch;
  return !failed;
}

}  // namespace jaxring::cuda
