// Copies by the bulk copy engine: one thread makes the hardware copy a slice to all its targets, piece by piece through
// shared memory, while the other threads wait at the next barrier. So a lane has more bytes in flight than registers
// hold and issues almost no instructions.
//
// What orders the copies, by the PTX ISA 9.0:
// - Bulk copies belong to the async proxy and all other accesses here to the generic proxy. Accesses by two proxies to
//   one location need a proxy fence between them (9.7.9.25.2 Async Proxy; 8.9.5 Causality Order, proxy-preserved base
//   causality order). So the thread executes fence.proxy.async.global before its first copy, after the barrier. Before
//   the barrier come the peer's stores that a wait has acquired, and the accesses of this block's threads to source and
//   targets. The fence is in the block of the copies and after the last synchronisation, so it counts whichever proxy
//   the peer has used. Only copies access the stages, and the mbarrier that reports an arrival is of the generic proxy.
//   Each thread that has stored by ordinary instructions passes the fence, too, before the barrier (FinishBulk).
// - The mbarriers are initialised by ordinary stores, so a fence for such initialisations and a proxy fence of shared
//   memory come between these and the first copy (StartBulk).
// - A load has arrived when its mbarrier's phase has ended (9.7.9.25.1 Completion Mechanisms; 9.7.13.15 mbarrier, whose
//   try_wait is an acquire). The copies from the stage are then of the same proxy, block and thread.
// - A stage may be loaded again when the copies from it have read it: wait_group.read (9.7.9.25.1 async-group
//   mechanism).
// - A slice's announcement (a message is there, a slot is free, a lane has ended) comes after its stores, so FinishBulk
//   waits for whole groups, without .read. Then the writes are visible to this thread, and an implicit proxy fence has
//   followed (9.7.9.25.2). From there on they are ordered like this thread's own stores: the block's barrier orders
//   them before other threads' later loads, and before the publishing release at system scope.
#pragma once

#include "cuda/device/pass.h"

namespace jaxring::cuda {

inline constexpr uint32_t kBulkStages = 8;  // a power of two

// State that the copying thread shares with the copy engine.
struct BulkShared {
  alignas(128) char stage[kBulkStages][kBulkPiece];
  uint64_t arrived[kBulkStages];
  uint32_t pieces;  // in this launch so far; piece p is in stage p % kBulkStages
};

// Dynamic shared memory for a launch of Simple or of a fused collective without a reduction.
constexpr uint64_t BulkBytes(const Args& args) { return args.bulk_bytes == 0 ? 0 : sizeof(BulkShared); }

// To be called once in a launch, by all threads, before the first slice.
JAXRING_DEVICE void StartBulk(const Args& args) {
  if constexpr (kHasBulk) {
    if (args.bulk_bytes == 0 || ThreadIndex() != 0) return;
    BulkShared& shared = BlockMemory<BulkShared>();
    for (uint64_t& arrived : shared.arrived) BulkInit(&arrived);
    shared.pieces = 0;
    FenceBulkInit();
  }
}

// To be called by all threads, before the barrier after which slices are published.
JAXRING_DEVICE void FinishBulk(const Args& args) {
  if constexpr (kHasBulk) {
    if (args.bulk_bytes == 0) return;
    if (ThreadIndex() == 0) BulkAwaitStored();
    FenceBulk();
  }
}

// Called by one thread: copies `bytes` at `offset` of the source, both multiples of packs, to all targets. It waits for
// the hardware only, as a load does, and never for a peer, so the waits have no deadline.
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
    // All stages but this piece's are free again.
    BulkAwaitRead();
    if (piece + kBulkStages - 1 < pieces) load(piece + kBulkStages - 1);
  }
}

// Called by one thread: copies fewer bytes than a pack. Slots hold whole packs.
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

// Called by all threads. Returns false, without having copied anything, if source and targets have different offsets
// within a pack or there is no whole pack.
JAXRING_DEVICE bool MoveBulk(const Work& work) {
  const auto skew = [](const Operand& operand) { return reinterpret_cast<uint64_t>(operand.at) % kPackBytes; };
  const uint64_t common = skew(work.source[0]);
  for (uint32_t t = 0; t < work.targets; ++t) {
    if (skew(work.target[t]) != common) return false;
  }
  // Slots begin with a whole pack, so if an operand is a slot there is no head.
  const uint32_t head = static_cast<uint32_t>((kPackBytes - common) % kPackBytes);
  if (work.bytes < head + kPackBytes) return false;
  const uint64_t whole = (work.bytes - head) / kPackBytes * kPackBytes;
  const uint32_t tail = static_cast<uint32_t>(work.bytes - head - whole);
  if (ThreadIndex() == 0) CopyPieces(work, head, whole);
  if (ThreadIndex() == Threads() - 1 && head != 0) MovePart(work, 0, head);
  if (ThreadIndex() == Threads() - 2 && tail != 0) MovePart(work, head + whole, tail);
  return true;
}

// Runs Pass, or bulk copies instead of it. FinishBulk must follow.
template <class Protocol, int kWiden>
JAXRING_DEVICE bool PassOrCopy(const Lane& lane, const Arithmetic& how, const Work& work) {
  if constexpr (kHasBulk && Protocol::kBulk) {
    const uint64_t least = lane.args.bulk_bytes;
    if (least != 0 && work.moves && work.bytes >= least && MoveBulk(work)) return true;
  }
  return Pass<Protocol, kWiden>(lane, how, work);
}

}  // namespace jaxring::cuda
