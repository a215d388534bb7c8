// All-reduce by the CUDA engine on the shim, for algorithm x protocol x dtype x operation x ranks: the result for
// arbitrary bits must be the CPU engine's. Under sanitizers each (algorithm, protocol, ranks) runs once, with dtypes
// and operations in turn.
#include <memory>

#include "tests/cuda/cuda_compare.h"
#include "tests/cuda/cuda_launch.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kAll = false;
#else
constexpr bool kAll = true;
#endif

struct Kind {
  DType dtype;
  ReduceOp op;
  bool mean;
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const DType dtype = static_cast<DType>(d);
      const ReduceOp op = static_cast<ReduceOp>(o);
      if (FindKernels(dtype, op) == nullptr) continue;
      kinds.push_back({dtype, op, false});
      if (op == ReduceOp::kSum && !IsInteger(dtype)) kinds.push_back({dtype, op, true});
    }
  }
  return kinds;
}

void Check(Call& call, const std::vector<Buffer>& inputs, const std::vector<Buffer>& expected, cuda::Protocol protocol,
           uint64_t bulk_bytes, uint64_t seed) {
  const Schedule& schedule = call.schedule();
  static cuda::simt::Machine machine;
  // A slice is 512 bytes and a tile two slices, so that most blocks need several of each.
  CudaPlan plan(schedule, call.settings(), 2);
  Cluster cluster({schedule.ranks(), static_cast<uint32_t>(schedule.nlanes), schedule.placement, protocol, 4,
                   plan.slot_bytes(protocol)});
  std::vector<Buffer> outputs = Outputs(call);
  std::vector<cuda::simt::Stream> streams(schedule.ranks());
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    auto args = plan.Args(cluster, rank, inputs[rank].data(), outputs[rank].data());
    args.bulk_bytes = bulk_bytes;
    streams[rank].push_back(LaunchOf(args, cuda::kWarp));
  }
  CHECK(machine.Run(streams, {seed, {}}));
  CheckSame(call, "protocol " + std::to_string(static_cast<int>(protocol)), outputs, expected);
  for (int rank = 0; rank < schedule.ranks(); ++rank) CHECK_EQ(cluster.status(rank).fault, 0u);
}

CASE("all-reduce has the CPU engine's bits") {
  const std::vector<Kind> kinds = Kinds();
  size_t turn = 0, cases = 0;
  for (int ranks = 2; ranks <= 8; ++ranks) {
    Job several(ranks, Wire::kShared), one(1, Wire::kShared);
    for (const Schedule& schedule : MatrixSchedules()) {
      if (schedule.ranks() != ranks) continue;
      for (size_t k = 0; k < (kAll ? kinds.size() : 3); ++k) {
        if (LeftOut(turn)) {
          ++turn;
          continue;
        }
        const Kind& kind = kinds[kAll ? k : turn % kinds.size()];
        // At most sizes a piece is not a whole number of packs; at some it is longer than a tile.
        const uint64_t element = ElementBytes(kind.dtype), pieces = static_cast<uint64_t>(schedule.pieces);
        const uint64_t block = turn % 16 == 5  ? pieces * (1024 / element + 9)
                               : turn % 8 == 3 ? ranks - 1
                                               : 13 * pieces + 5;
        Call call(schedule.processes() == 1 ? &one : &several, schedule,
                  SettingsOf(schedule, kind.dtype, kind.op, kind.mean, block));
        const std::vector<Buffer> inputs = AnyBits(call, turn + 1);
        const std::vector<Buffer> expected = OnCpu(call, inputs);
        for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
          if (!schedule.messages() && protocol != cuda::Protocol::kSimple) continue;
          if (!kAll && schedule.messages() && static_cast<size_t>(protocol) != k) continue;
          // Bulk copies are on for eight cases and off for the next eight, so there are seeds of both.
          ++cases;
          Check(call, inputs, expected, protocol, cases / 8 % 2 == 0 ? 16 : 0, cases % 8 == 0 ? cases : 0);
        }
        turn += kAll ? 1 : 7;
      }
    }
  }
  std::cout << cases << " cases" << std::endl;
  CHECK(cases * Share() > (kAll ? 7 * 4 * 3 * 90u : 7 * 4 * 3u));
}

}  // namespace
}  // namespace jaxring::test
