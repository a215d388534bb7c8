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

JAXRING_DEVICE uint32_t BegunFlag(const Lane& lane) { return static_cast<uint32_t>(lane.epoch); }
JAXRING_DEVICE bool Begun(const Vec& line, uint32_t flag) { return line.w[1] == flag && line.w[3] == flag; }

// Waits until the member has begun and gives where its buffers are. An acquire in every turn would empty the
// first-level cache of all that runs on the multiprocessor, so the loop has none, and one follows it.
JAXRING_DEVICE bool AwaitBegun(const Lane& lane, const EpochBarrier& barrier, int32_t rank, uint64_t (&places)[2]) {
  const uint32_t flag = BegunFlag(lane);
  Vec in = LoadBegun(barrier.begun[0]), out = LoadBegun(barrier.begun[1]);
  for (uint32_t turn = 1; !Begun(in, flag) || !Begun(out, flag); ++turn) {
    if (turn % kPatience == 0) {
      if (MemberFailed(lane, barrier, Wait::kBegin, rank)) return false;
      if (GivesUp(lane, Wait::kBegin, rank, lane.epoch)) return false;
    }
    Pause(turn);
    in = LoadBegun(barrier.begun[0]);
    out = LoadBegun(barrier.begun[1]);
  }
  AcquireBegun(barrier.begun[0]);
  AcquireBegun(barrier.begun[1]);
  places[0] = static_cast<uint64_t>(in.w[2]) << 32 | in.w[0];
  places[1] = static_cast<uint64_t>(out.w[2]) << 32 | out.w[0];
  return !MemberFailed(lane, barrier, Wait::kBegin, rank);
}

// Tells the members that this rank's buffers are ready and where they are, and waits for the same from them. To be
// called by all threads; returns the same for all.
JAXRING_DEVICE bool EnterBarrier(Lane& lane) {
  const Args& args = lane.args;
  if (args.member_count == 0) return true;
  lane.epoch = args.epochs[2 * lane.number] + 1;
  const uint32_t flag = BegunFlag(lane);
  const uint64_t in = PackedPlace(args.in_region, args.in_offset);
  const uint64_t out = PackedPlace(args.out_region, args.out_offset);
  bool failed = false;
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    EpochBarrier& barrier = Theirs(lane, m);
    StoreBegun(barrier.begun[0], {{static_cast<uint32_t>(in), flag, static_cast<uint32_t>(in >> 32), flag}});
    StoreBegun(barrier.begun[1], {{static_cast<uint32_t>(out), flag, static_cast<uint32_t>(out >> 32), flag}});
    // For the memory that a rank takes back after a failure. A rank that traps takes none back.
    if (!args.trap) FenceAll();
  }
  for (uint32_t m = ThreadIndex(); m < args.member_count; m += Threads()) {
    const Member& member = args.members[m];
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
  if (!met && !Begun(LoadBegun(barrier.begun[0]), BegunFlag(lane))) return;
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
