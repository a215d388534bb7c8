// Collectives without a step table, among ranks that all address each other's memory: one pass, without a table to
// read. They reduce in rank order, so results have the same bits as those of the schedule `direct`. See Fused in
// kernel_launch.h.
#pragma once

#include "cuda/device/epoch_barrier.h"
#include "cuda/device/simple.h"
#include "cuda/experimental/bulk.h"
#include "cuda/kernels/kernel_launch.h"
#include "cuda/kernels/share.h"
#include "cuda/kernels/staging.h"

namespace jaxring::cuda {

template <int kWiden>
class FusedPlayer {
 public:
  JAXRING_DEVICE FusedPlayer(const Args& args, Shared& shared)
      : args_(args),
        lane_(args, shared),
        how_{args.call.dtype, CodeOf(args.call.dtype, args.call.op), args.call.divisor},
        block_bytes_(args.shape.block_elements * BytesOf(args.call.dtype)) {}

  // Returns the same for all threads: whether it is done.
  JAXRING_DEVICE bool Play(Fused fused) {
    if constexpr (kWiden == 0) StartBulk(args_);
    bool good = EnterBarrier(lane_);
    if (good) {
      if constexpr (kWiden == 0) {
        good = PlayMove(fused);
        FinishBulk(args_);
      } else {
        good = PlayFold(fused);
      }
    }
    return LeaveBarrier(lane_, !good);
  }

 private:
  // This lane's.
  JAXRING_DEVICE Share Mine(Share whole) const { return ShareOf(whole, lane_.number, args_.shape.lanes); }
  JAXRING_DEVICE uint64_t OwnBlock() const { return static_cast<uint64_t>(args_.group.rank) * block_bytes_; }

  // Members are in rank order without this rank.
  JAXRING_DEVICE uint32_t MemberOf(uint32_t rank) const {
    return rank - (rank > static_cast<uint32_t>(args_.group.rank));
  }
  JAXRING_DEVICE Operand InputOf(uint32_t rank, uint64_t offset) const {
    const bool own = rank == static_cast<uint32_t>(args_.group.rank);
    const char* base = own ? args_.buffers.in : lane_.shared.member_in[MemberOf(rank)];
    return {const_cast<char*>(base) + offset, 0, Form::kRaw, 0, -1};
  }
  JAXRING_DEVICE Operand OutputOf(uint32_t rank, uint64_t offset) const {
    const bool own = rank == static_cast<uint32_t>(args_.group.rank);
    char* base = own ? args_.buffers.out : lane_.shared.member_out[MemberOf(rank)];
    return {base + offset, 0, own ? Form::kRaw : Form::kFar, 0, -1};
  }

  // `moves` says that nothing is done to the one source's elements.
  JAXRING_DEVICE Work WorkOn(uint64_t bytes, uint32_t sources, uint32_t targets, bool moves) const {
    Work work;
    work.source = lane_.shared.sources;
    work.target = lane_.shared.targets;
    work.sources = sources;
    work.targets = targets;
    work.bytes = bytes;
    work.packs = static_cast<uint32_t>((bytes + kPackBytes - 1) / kPackBytes);
    work.divide = !moves && args_.call.divisor != 0;
    work.moves = moves && !work.divide;
    uint64_t addresses = 0;
    for (uint32_t i = 0; i < sources; ++i) addresses |= AddressOf(work.source[i]);
    for (uint32_t i = 0; i < targets; ++i) addresses |= AddressOf(work.target[i]);
    work.aligned = addresses % kPackBytes == 0;
    addresses |= bytes;
    work.log2 = addresses & 1 ? 0 : addresses & 2 ? 1 : 2;
    return work;
  }
  JAXRING_DEVICE static uint64_t AddressOf(const Operand& operand) { return reinterpret_cast<uint64_t>(operand.at); }

  JAXRING_DEVICE bool PlayFold(Fused fused) {
    const uint32_t ranks = args_.group.ranks;
    const bool all = fused == Fused::kAllReduceTwoShot;
    const Share mine = Mine(all ? ShareOf({0, block_bytes_}, args_.group.rank, ranks) : Share{0, block_bytes_});
    for (uint32_t r = ThreadIndex(); r < ranks; r += Threads()) {
      lane_.shared.sources[r] = InputOf(r, mine.begin + (all ? 0 : OwnBlock()));
      if (all) lane_.shared.targets[r] = OutputOf(r, mine.begin);
    }
    if (!all && ThreadIndex() == 0) lane_.shared.targets[0] = OutputOf(args_.group.rank, mine.begin);
    SyncBlock();
    return Pass<InPlace, kWiden>(lane_, how_, WorkOn(mine.end - mine.begin, ranks, all ? ranks : 1, false));
  }

  JAXRING_DEVICE bool PlayMove(Fused fused) {
    const uint32_t ranks = args_.group.ranks;
    // In a broadcast every rank carries a share to all; the others carry whole blocks of their own.
    const bool broadcast = fused == Fused::kBroadcast, to_each = fused == Fused::kAllToAll;
    const Share block{0, block_bytes_};
    const Share mine = Mine(broadcast ? ShareOf(block, args_.group.rank, ranks) : block);
    for (uint32_t r = ThreadIndex(); r < ranks; r += Threads()) {
      // Each rank begins with another peer.
      const uint32_t to = to_each ? (args_.group.rank + r) % ranks : r;
      const uint32_t from = broadcast ? args_.call.root : args_.group.rank;
      if (to_each || r == 0) {
        lane_.shared.sources[r] = InputOf(from, mine.begin + (to_each ? to * block_bytes_ : 0));
      }
      lane_.shared.targets[r] = OutputOf(to, mine.begin + (broadcast ? 0 : OwnBlock()));
    }
    SyncBlock();
    if (!to_each) return PassOrCopy<InPlace, 0>(lane_, how_, WorkOn(mine.end - mine.begin, 1, ranks, true));
    Work work = WorkOn(mine.end - mine.begin, ranks, ranks, true);
    work.sources = work.targets = 1;
    bool good = true;
    for (uint32_t r = 0; good && r < ranks; ++r, ++work.source, ++work.target) {
      good = PassOrCopy<InPlace, 0>(lane_, how_, work);
    }
    return good;
  }

  const Args& args_;
  Lane lane_;
  Arithmetic how_;
  uint64_t block_bytes_;
};

template <int kWiden, bool kStages = false>
JAXRING_DEVICE void PlayFused(Fused fused, const Args& args, Shared& shared) {
  if constexpr (kStages) {
    if (!StageIn(args, shared)) return LeaveLaunch(args, false);
    StageOut(args, shared, FusedPlayer<kWiden>(args, shared).Play(fused));
  } else {
    LeaveLaunch(args, FusedPlayer<kWiden>(args, shared).Play(fused));
  }
}

}  // namespace jaxring::cuda
