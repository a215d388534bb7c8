// Binds schedules to the CUDA engine's records, and launches the kernels' own source on the shim.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cuda/sim/shim/shim_kernels.h"
#include "tests/cuda/cuda_cluster.h"
#include "tests/support/schedules.h"
#include "tests/support/values.h"

namespace jaxring::test {

// Tests that take long run one in so many cases, by the variable TEST_SHARE; all of them without it.
inline uint64_t Share() {
  static const uint64_t share = [] {
    const char* text = std::getenv("TEST_SHARE");
    return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
  }();
  CHECK(share > 0);
  return share;
}
inline bool LeftOut(uint64_t turn) { return Random(turn) % Share() != 0; }

// A schedule bound to a dtype and size for all ranks, as the planner binds it. A slice has 512 bytes of the narrower of
// data and results, or as many times that as `longer` says.
class CudaPlan {
 public:
  CudaPlan(const Schedule& schedule, const Settings& settings, uint32_t slices, uint64_t longer = 1)
      : schedule_(schedule), settings_(settings), element_(ElementBytes(settings.dtype)) {
    widening_ = cuda::Widening(settings.dtype, schedule.reduces());
    slice_ = longer * 512 / std::min(element_, settings.result_bytes());
    tile_ = slice_ * slices;
    plan_ = MakePlan(schedule, settings, 0, 1);
    plan_->shape.tile_elements = tile_;
    for (int p = 0; p <= schedule.pieces; ++p) piece_begin_.push_back(plan_->PieceBegin(p));
    for (const RankTable& table : schedule.tables) {
      std::vector<uint32_t> route;
      for (int32_t peer : table.peers) route.push_back(Route(table.rank, peer));
      routes_.push_back(std::move(route));
      scratch_.push_back(std::make_unique<Memory>(cuda::ScratchBytes(tile_, element_, widening_) *
                                                  schedule.scratch_chunks * schedule.nlanes));
    }
  }

  uint64_t slot_bytes(cuda::Protocol protocol) const {
    return std::max(cuda::SlotBytes(protocol, slice_, element_, widening_),
                    cuda::SlotBytes(protocol, slice_, settings_.result_bytes(), 1));
  }
  uint64_t tile() const { return tile_; }
  // Whether any rank of this rank's domain addresses another's memory.
  bool memory(int rank) const {
    for (const RankTable& table : schedule_.tables) {
      if (schedule_.placement[table.rank] != schedule_.placement[rank]) continue;
      for (int32_t peer : table.peers) {
        if (Peer::memory(peer)) return true;
      }
    }
    return false;
  }

  cuda::Args Args(Cluster& cluster, int rank, const char* in, char* out) const {
    const RankTable& table = schedule_.tables[rank];
    cuda::Args args = cluster.Common(rank, in, out, memory(rank));
    args.table.steps = table.steps.data();
    args.table.lane_begin = table.lane_begin.data();
    args.table.peers = table.peers.data();
    args.table.route = routes_[rank].data();
    args.table.piece_begin = piece_begin_.data();
    args.buffers.scratch = scratch_[rank]->data();
    args.shape.block_elements = settings_.block;
    args.shape.tiles = plan_->Tiles();
    args.shape.tile_elements = tile_;
    args.shape.slice_elements = slice_;
    args.call.divisor = settings_.divisor;
    args.shape.lanes = schedule_.nlanes;
    args.shape.pieces = schedule_.pieces;
    args.shape.scratch_chunks = schedule_.scratch_chunks;
    args.shape.in_blocks = schedule_.in_blocks;
    args.shape.out_blocks = schedule_.out_blocks;
    args.call.root = schedule_.root;
    args.call.dtype = settings_.dtype;
    args.call.op = settings_.op;
    args.call.reduces = schedule_.reduces();
    return args;
  }

 private:
  uint32_t Route(int rank, int32_t peer) const {
    if (!Peer::memory(peer)) return Peer::rank(peer);
    uint32_t member = 0;
    for (int r = 0; r < Peer::rank(peer); ++r) {
      if (r != rank && schedule_.placement[r] == schedule_.placement[rank]) ++member;
    }
    return member;
  }

  const Schedule& schedule_;
  Settings settings_;
  size_t element_;
  uint32_t widening_;
  uint64_t slice_, tile_;
  std::shared_ptr<jaxring::Plan> plan_;
  std::vector<uint64_t> piece_begin_;
  std::vector<std::vector<uint32_t>> routes_;
  std::vector<std::unique_ptr<Memory>> scratch_;
};

inline cuda::simt::Kernel FusedLaunchOf(cuda::Fused fused, const cuda::Args& args, uint32_t threads,
                                        std::function<void()> done = {}, std::function<void()> trapped = {}) {
  auto shared = std::make_shared<std::vector<cuda::Shared>>(args.shape.lanes);
  return {args.shape.lanes, threads, [=] { cuda::shim::PlayFused(fused, args, (*shared)[cuda::BlockIndex()]); },
          std::move(done), std::move(trapped)};
}

// The launch of one rank.
inline cuda::simt::Kernel LaunchOf(const cuda::Args& args, uint32_t threads, std::function<void()> done = {}) {
  auto shared = std::make_shared<std::vector<cuda::Shared>>(args.shape.lanes);
  auto body = [args, shared] { cuda::shim::PlayTable(args, (*shared)[cuda::BlockIndex()]); };
  return {args.shape.lanes, threads, body, std::move(done)};
}

// The same with an epilogue.
inline cuda::simt::Kernel LaunchOf(const cuda::EpilogueArgs& epilogue, const cuda::Args& args, uint32_t threads) {
  auto shared = std::make_shared<std::vector<cuda::Shared>>(args.shape.lanes);
  auto body = [=] { cuda::shim::PlayEpilogue(epilogue, args, (*shared)[cuda::BlockIndex()]); };
  return {args.shape.lanes, threads, body, {}};
}

}  // namespace jaxring::test
