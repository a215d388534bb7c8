// Moves by bulk copies: one thread has the machine copy a slice to all its targets, piece by piece through the block's
// own memory, while the others wait at the next barrier. So a lane keeps more bytes on their way than registers hold,
// and takes next to nothing of what its multiprocessor can issue.
//
// What orders them, by the PTX ISA 9.0:
// - Bulk copies are of the async proxy, all else here is of the generic one, and accesses of two proxies to one place
//   need a proxy fence between them (9.7.9.25.2 Async Proxy; 8.9.5 Causality Order, proxy-preserved base causality
//   order). So the thread passes fence.proxy.async.global before its first copy, behind the barrier; before that lie
//   what a peer stored and a wait has acquired, and whatever threads of this block stored to or loaded from source and
//   targets. There, in the block of the copies and behind the last synchronisation, it counts whatever proxy the other
//   side used. The stages are touched by copies only, and what says that one has arrived is of the generic proxy.
// - A load has arrived when its mbarrier's phase has ended (9.7.9.25.1 Completion Mechanisms; 9.7.13.15 mbarrier, whose
//   try_wait is an acquire). The copies from the stage then are of the same proxy, block and thread.
// - A stage may be loaded anew when the copies from it have read it: wait_group.read (9.7.9.25.1 async-group
// mechanism).
// - What a slice tells others (a message is there, a slot is free, a lane has ended) comes behind the stores
// themselves,
//   so FinishBulk waits for whole groups, without .read: then their writes have been made visible to this thread, and
//   an implicit proxy fence has followed (9.7.9.25.2). From there on they are ordered as stores of this thread are: by
//   the block's barrier, other threads' later loads come behind them, and so does the release at system scope that
//   publishes.
#pragma once

#include "cuda/device/pass.h"

namespace jaxring::cuda {

inline constexpr uint32_t kBulkStages = 8;  // a power of two

// What the one thread shares with the machine.
struct BulkShared {
  alignas(128) char stage[kBulkStages][kBulkPiece];
  uint64_t arrived[kBulkStages];
  uint32_t pieces;  // so far in this launch: piece p lies in stage p % kBulkStages
};

// Dynamic shared memory that a launch of Simple or of fused moves takes.
constexpr uint64_t BulkBytes(const Args& args) { return args.bulk_bytes == 0 ? 0 : sizeof(BulkShared); }

// Once in a launch, by all threads, before the first slice.
JAXRING_DEVICE void StartBulk(const Args& args) {
  if constexpr (kHasBulk) {
    if (args.bulk_bytes == 0 || ThreadIndex() != 0) return;
    BulkShared& shared = BlockMemory<BulkShared>();
    for (uint64_t& arrived : shared.arrived) BulkInit(&arrived);
    shared.pieces = 0;
  }
}

// By all threads, before the barrier behind which slices are published.
JAXRING_DEVICE void FinishBulk(const Args& args) {
  if constexpr (kHasBulk) {
    if (args.bulk_bytes != 0 && ThreadIndex() == 0) BulkAwaitStored();
  }
}

// By one thread: `bytes` at `offset` of the source, both multiples of packs, to all targets. Nothing here waits for a
// peer, only for the machine, as a load does: so no wait has a deadline.
JAXRING_DEVICE void CopyPieces(const Work& work, uint64_t offset, uint64_t bytes) {
  BulkShared& shared = BlockMemory<BulkShared>();
  const uint32_t first = shared.pieces, pieces = static_cast<uint32_t>((bytes + kBulkPiece - 1) / kBulkPiece);
  shared.pieces = first + pieces;
  const char* from = work.source[0].at + offset;
  const auto size = [=](uint32_t piece) {
    return piece + 1 < pieces ? kBulkPiece : static_cast<uint32_t>(bytes - uint64_t{piece} * kBulkPiece);
  };
  const auto load = [&](uint32_t piece) {
    const uint32_t stage = (first + piece) % kBulkStages;
    BulkLoad(shared.stage[stage], from + uint64_t{piece} * kBulkPiece, size(piece), &shared.arrived[stage]);
  };
  FenceBulk();
  BulkAwaitRead();
  JAXRING_ROLLED
  for (uint32_t piece = 0; piece < pieces && piece < kBulkStages - 1; ++piece) load(piece);
  JAXRING_ROLLED
  for (uint32_t piece = 0; piece < pieces; ++piece) {
    const uint32_t number = first + piece, stage = number % kBulkStages;
    while (!BulkArrived(&shared.arrived[stage], number / kBulkStages % 2)) continue;
    JAXRING_ROLLED
    for (uint32_t t = 0; t < work.targets; ++t) {
      BulkStore(work.target[t].at + offset + uint64_t{piece} * kBulkPiece, shared.stage[stage], size(piece));
    }
    BulkCommit();
    // All but this piece's stage are free again.
    BulkAwaitRead();
    if (piece + kBulkStages - 1 < pieces) load(piece + kBulkStages - 1);
  }
}

// By one thread: fewer bytes than a pack. Slots hold whole ones.
JAXRING_DEVICE void MovePart(const Work& work, uint64_t offset, uint32_t bytes) {
  const Operand& source = work.source[0];
  const char* from = source.at + offset;
  const Vec part = source.form == Form::kMessage ? LoadSlot(from) : LoadEdge(from, bytes, work.log2);
  for (uint32_t t = 0; t < work.targets; ++t) {
    const Operand& target = work.target[t];
    if (target.form == Form::kMessage) {
      StoreFar(target.at + offset, part);
    } else {
      StoreEdge(target.at + offset, part, bytes, work.log2, target.form == Form::kFar);
    }
  }
}

// By all threads. False if source and targets lie differently within a pack, or there is no whole one: nothing has been
// moved then.
JAXRING_DEVICE bool MoveBulk(const Work& work) {
  const auto skew = [](const Operand& operand) { return reinterpret_cast<uint64_t>(operand.at) % kPackBytes; };
  const uint64_t common = skew(work.source[0]);
  for (uint32_t t = 0; t < work.targets; ++t) {
    if (skew(work.target[t]) != common) return false;
  }
  // Slots are whole packs from the first on, so where there is one there is no head.
  const uint32_t head = static_cast<uint32_t>((kPackBytes - common) % kPackBytes);
  if (work.bytes < head + kPackBytes) return false;
  const uint64_t whole = (work.bytes - head) / kPackBytes * kPackBytes;
  const uint32_t tail = static_cast<uint32_t>(work.bytes - head - whole);
  if (ThreadIndex() == 0) CopyPieces(work, head, whole);
  if (ThreadIndex() == Threads() - 1 && head != 0) MovePart(work, 0, head);
  if (ThreadIndex() == Threads() - 2 && tail != 0) MovePart(work, head + whole, tail);
  return true;
}

// Pass, or bulk copies in its place. To be followed by FinishBulk.
template <class Protocol, int kWiden>
JAXRING_DEVICE bool PassOrCopy(const Lane& lane, const Arithmetic& how, const Work& work) {
  if constexpr (kHasBulk && Protocol::kBulk) {
    const uint64_t least = lane.args.bulk_bytes;
    if (least != 0 && work.moves && work.bytes >= least && MoveBulk(work)) return true;
  }
  return Pass<Protocol, kWiden>(lane, how, work);
}

}  // namespace jaxring::cuda
