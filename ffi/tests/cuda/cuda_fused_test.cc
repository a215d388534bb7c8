// The fused collectives on the shim give the CPU engine's results for arbitrary bits.
#include <array>
#include <memory>

#include "tests/cuda/cuda_compare.h"
#include "tests/cuda/cuda_launch.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kThreads = 64;

// Launches several times in a row with different numbers of lanes, so that staging buffers and epoch barriers are used
// again. The last all_reduce is in place.
void CheckFused(Job& job, cuda::Fused fused, const std::string& name, DType dtype, bool mean, uint64_t block,
                uint64_t launches_before = 0) {
  const Schedule& schedule = Find(name);
  const int n = schedule.ranks();
  Settings settings = SettingsOf(schedule, dtype, ReduceOp::kSum, mean, block);
  Call call(&job, schedule, settings);
  const std::vector<Buffer> inputs = AnyBits(call, block);
  const std::vector<Buffer> expected = OnCpu(call, inputs);
  constexpr std::array<uint32_t, 6> kLanes = {2, 5, 1, 3, 5, 4};
  ClusterShape shape{
      n, 5, schedule.placement, cuda::Protocol::kSimple, 4, 128, cuda::StageBytes(block * ElementBytes(dtype)) + 1024};
  Cluster cluster(shape);
  cluster.StartOneShotsAt(launches_before);
  std::vector<std::vector<Buffer>> outputs;
  const bool all_reduce = schedule.collective == "all_reduce";
  std::vector<cuda::simt::Stream> streams(n);
  for (size_t launch = 0; launch < kLanes.size(); ++launch) {
    outputs.push_back(Outputs(call));
    for (int rank = 0; rank < n; ++rank) {
      const char* in = inputs[rank].data();
      char* out = outputs[launch][rank].data();
      if (all_reduce && launch + 1 == kLanes.size()) {
        std::memcpy(out, in, inputs[rank].size());
        in = out;
      }
      cuda::Args args = cluster.Common(rank, in, out, true);
      args.shape.block_elements = block;
      args.call.divisor = settings.divisor;
      args.shape.lanes = kLanes[launch];
      args.shape.in_blocks = schedule.in_blocks;
      args.shape.out_blocks = schedule.out_blocks;
      args.call.root = schedule.root;
      args.call.dtype = dtype;
      args.call.op = settings.op;
      args.call.reduces = schedule.reduces();
      args.call.number = 0x10003;
      // Ranks need not agree on whether they use bulk copies.
      args.bulk_bytes = (launch + rank) % 2 == 0 ? 16 : 0;
      streams[rank].push_back(FusedLaunchOf(fused, args, kThreads));
    }
  }
  static cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {block + 1, {}}));
  for (const auto& launch : outputs) {
    CheckSame(call, "fused " + std::to_string(static_cast<int>(fused)), launch, expected);
  }
}

CASE("fused collectives") {
  using cuda::Fused;
  Job job(1, Wire::kShared);
  for (const char* where : {"1x4", "1x1"}) {
    auto name = [&](const char* collective) { return std::string(collective) + " direct " + where + " x1"; };
    for (uint64_t block : {0, 1, 7, 300, 2111}) {
      if (cuda::simt::kThreadSanitizer && block != 300) continue;
      for (DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3FN, DType::kC128, DType::kInt8}) {
        const bool mean = dtype == DType::kBF16;
        CheckFused(job, Fused::kAllReduceOneShot, name("all_reduce"), dtype, mean, block);
        CheckFused(job, Fused::kAllReduceTwoShot, name("all_reduce"), dtype, mean, block);
        CheckFused(job, Fused::kReduceScatter, name("reduce_scatter"), dtype, mean, block);
      }
      for (DType dtype : {DType::kF32, DType::kInt8}) {
        CheckFused(job, Fused::kAllGather, name("all_gather"), dtype, false, block);
        CheckFused(job, Fused::kBroadcast, name("broadcast"), dtype, false, block);
        CheckFused(job, Fused::kAllToAll, name("all_to_all"), dtype, false, block);
      }
    }
  }
}

// Sums among 2, 4 and 8 ranks have kernels of their own; other operations and numbers of ranks share one.
CASE("one-shot all-reduces") {
  Job job(1, Wire::kShared);
  for (const char* ranks : {"2", "3", "4", "8"}) {
    const std::string name = std::string("all_reduce direct 1x") + ranks + " x1";
    for (uint64_t block : {1, 300, 2111}) {
      if (cuda::simt::kThreadSanitizer && block != 300) continue;
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        for (bool mean : {false, true}) CheckFused(job, cuda::Fused::kAllReduceOneShot, name, dtype, mean, block);
      }
    }
  }
}

// The flags in a stage have 16 bits of a launch's number.
CASE("one-shot all-reduces whose flags wrap") {
  Job job(1, Wire::kShared);
  for (uint64_t before : {uint64_t{0x7ffd}, uint64_t{0xfffd}, uint64_t{0xfffffffd}}) {
    for (DType dtype : {DType::kF32, DType::kInt8}) {
      CheckFused(job, cuda::Fused::kAllReduceOneShot, "all_reduce direct 1x4 x1", dtype, false, 300, before);
    }
  }
}

template <class T>
void CheckOldLines(DType dtype) {
  constexpr uint64_t kLong = 100, kShort = 3, kBefore = 8, kTurn = uint64_t{1} << 16;
  constexpr int kRanks = 4;
  Cluster cluster({kRanks, 1, {0, 0, 0, 0}, cuda::Protocol::kSimple, 4, 128, cuda::StageBytes(kLong * 4)});
  const auto play = [&](uint64_t number, uint64_t block, int launches, int salt) {
    cluster.StartOneShotsAt(number);
    std::vector<Buffer> inputs, outputs;
    std::vector<cuda::simt::Stream> streams(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      inputs.emplace_back(block * 4);
      outputs.emplace_back(block * 4);
      for (int i = 0; i < static_cast<int>(block); ++i) {
        Put<T>(inputs[rank].data() + 4 * i, static_cast<T>(rank * 1000 + i + salt));
      }
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      cuda::Args args = cluster.Common(rank, inputs[rank].data(), outputs[rank].data(), true);
      args.shape.block_elements = block;
      args.shape.lanes = args.shape.in_blocks = args.shape.out_blocks = 1;
      args.call.dtype = dtype;
      args.call.op = ReduceOp::kSum;
      args.call.reduces = true;
      args.call.number = 0x20005;
      streams[rank].assign(launches, FusedLaunchOf(cuda::Fused::kAllReduceOneShot, args, 32));
    }
    cuda::simt::Machine machine;
    CHECK(machine.Run(streams, {3, {}}));
    for (int rank = 0; rank < kRanks; ++rank) {
      CHECK_EQ(cluster.status(rank).fault, 0u);
      for (int i = 0; i < static_cast<int>(block); ++i) {
        CHECK(Get<T>(outputs[rank].data() + 4 * i) == static_cast<T>(6000 + kRanks * (i + salt)));
      }
    }
  };
  play(kBefore, kLong, 2, 5000);
  play(kTurn / 2 - 1, kShort, 4, 0);
  play(kTurn + kBefore, kLong, 1, 0);
}

// Short launches pass the number at which stages are cleaned, and then come long ones whose flags are those of the
// first ones: no line of these is taken for one of theirs.
CASE("old lines in stages") {
  CheckOldLines<float>(DType::kF32);
  CheckOldLines<int32_t>(DType::kInt32);
}

// One rank is in another call of the same size: nobody takes its data, and the others name it and its call.
CASE("a rank in another call") {
  const Schedule& schedule = Find("all_reduce direct 1x4 x1");
  constexpr uint32_t kCall = 0x20005, kOther = 0x70009;
  constexpr int kStray = 2;
  for (auto fused : {cuda::Fused::kAllReduceOneShot, cuda::Fused::kAllReduceTwoShot}) {
    for (DType dtype : {DType::kF32, DType::kInt8}) {
      constexpr uint64_t kBlock = 300;
      Cluster cluster({4, 2, schedule.placement, cuda::Protocol::kSimple, 4, 128, cuda::StageBytes(kBlock * 4)});
      std::vector<Buffer> inputs, outputs;
      std::vector<cuda::simt::Stream> streams(4);
      for (int rank = 0; rank < 4; ++rank) {
        inputs.emplace_back(kBlock * 4);
        outputs.emplace_back(kBlock * 4);
      }
      for (int rank = 0; rank < 4; ++rank) {
        cuda::Args args = cluster.Common(rank, inputs[rank].data(), outputs[rank].data(), true);
        args.shape.block_elements = kBlock;
        args.shape.lanes = 2;
        args.shape.in_blocks = args.shape.out_blocks = 1;
        args.call.dtype = dtype;
        args.call.op = ReduceOp::kSum;
        args.call.reduces = true;
        args.call.number = rank == kStray ? kOther : kCall;
        args.failure.timeout_ns = uint64_t{1} << 60;
        args.failure.spread_faults = true;
        streams[rank].push_back(FusedLaunchOf(fused, args, kThreads));
      }
      static cuda::simt::Machine machine;
      CHECK(machine.Run(streams, {static_cast<uint64_t>(dtype) + 1, {}}));
      int told = 0;
      for (int rank = 0; rank < 4; ++rank) {
        const cuda::Status& status = cluster.status(rank);
        CHECK(status.fault != 0);
        if (status.fault != static_cast<uint32_t>(cuda::Fault::kOtherCall)) continue;
        ++told;
        CHECK((rank == kStray) != (status.peer == kStray));
        CHECK_EQ(status.number & 0xffff, (rank == kStray ? kCall : kOther) & 0xffff);
      }
      CHECK(told > 0);
    }
  }
}

}  // namespace
}  // namespace jaxring::test
