// Launches whose buffers not all members can address play on own memory that they can, between a copy of the input and
// one of the output. The kernel makes these copies, so that a launch is one node of a CUDA graph whether it makes them
// or not: XLA captures a call again when its buffers' addresses change, and CUDA updates a graph to other kernels and
// other parameters, but not to other nodes. Kernels that do so are others than those that do not, whose code it would
// slow down.
//
// A member's lane may read what any of this rank's lanes has copied, and write what any of them copies out. So all
// lanes of the launch meet after the first copy and before the second. They are resident together.
#pragma once

#include "cuda/device/lane.h"
#include "cuda/device/packs.h"
#include "cuda/kernels/share.h"

namespace jaxring::cuda {

// Waits until all lanes of the launch have come as far; to be called by all threads, also of a lane that has failed.
// What any of their threads has stored before, all of this lane's see. Returns false if it gave up.
JAXRING_DEVICE bool MeetLanes(const Lane& lane) {
  SyncBlock();
  bool lost = false;
  if (ThreadIndex() == 0) {
    uint64_t* met = &lane.args.state->met;
    // Launches come one after another, with equally many lanes, and no meeting ends without this lane. So what is read
    // here counts the meetings before, and lanes that have come to this one.
    const uint64_t before = LoadRelaxed(met);
    FenceAll();
    CountUp(met);
    const uint64_t all = (before / lane.args.shape.lanes + 1) * lane.args.shape.lanes;
    lost = !AwaitAtLeast(lane, Wait::kCopies, lane.args.group.rank, met, all);
  }
  return !SyncBlockOr(lost);
}

// Copies this lane's share of so many bytes; called by all threads.
JAXRING_DEVICE void CopyShare(const Args& args, char* to, const char* from, uint64_t bytes) {
  constexpr int kPacks = 4;  // in flight of a thread
  const Share mine = ShareOf({0, bytes}, BlockIndex(), args.shape.lanes);
  const bool aligned = (reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % kPackBytes == 0;
  const uint64_t whole = aligned ? mine.begin + (mine.end - mine.begin) / kPackBytes * kPackBytes : mine.begin;
  const uint64_t stride = uint64_t{Threads()} * kPackBytes;
  for (uint64_t begin = mine.begin + uint64_t{ThreadIndex()} * kPackBytes; begin < whole; begin += kPacks * stride) {
    Vec packs[kPacks];
    JAXRING_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      if (begin + i * stride < whole) packs[i] = Load(from + begin + i * stride);
    }
    JAXRING_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      if (begin + i * stride < whole) StoreFar(to + begin + i * stride, packs[i]);
    }
  }
  for (uint64_t at = whole + ThreadIndex(); at < mine.end; at += Threads()) {
    StoreFarElement<uint8_t>(to + at, LoadElement<uint8_t>(from + at));
  }
}

// To be called by all threads before the launch is played. Returns false if this lane gave up: the launch then ends
// without being played, and its other lanes by the abort word or their deadlines. No barrier has its mark.
JAXRING_DEVICE bool StageIn(const Args& args, Shared& shared) {
  CopyShare(args, const_cast<char*>(args.buffers.in), args.staging.from, args.staging.in_bytes);
  const bool good = MeetLanes(Lane(args, shared));
  // What all lanes have copied is there before a member learns that this rank has begun. (The tests' machine has made
  // it known with the meeting: no test notices if this fence is missing.)
  if (ThreadIndex() < args.group.member_count) FenceAll();
  return good;
}
// To be called by all threads when it has been played, with whether it is done. The launch ends with it.
JAXRING_DEVICE void StageOut(const Args& args, Shared& shared, bool good) {
  good = MeetLanes(Lane(args, shared)) && good;
  if (good) CopyShare(args, args.staging.to, args.buffers.out, args.staging.out_bytes);
  LeaveLaunch(args, good);
}

}  // namespace jaxring::cuda
