// Runs every dumped schedule through the CUDA kernels' own source on the shim. By each protocol the result must have
// the CPU engine's bits.
#include <array>
#include <map>
#include <memory>

#include "tests/cuda/cuda_compare.h"
#include "tests/cuda/cuda_launch.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

// A block of `block` elements. If `tiles` is not 0, a block whose pieces are that many tiles and a few elements long.
struct Sample {
  uint64_t block, tiles;
  DType dtype;
  ReduceOp op;
  bool mean;
};

constexpr std::array kSamples = {
    Sample{0, 2, DType::kF32, ReduceOp::kSum, false},   Sample{37, 0, DType::kBF16, ReduceOp::kSum, true},
    Sample{0, 1, DType::kF16, ReduceOp::kSum, false},   Sample{301, 0, DType::kInt8, ReduceOp::kMax, false},
    Sample{1, 0, DType::kF8E5M2, ReduceOp::kSum, true}, Sample{0, 1, DType::kC128, ReduceOp::kSum, false},
    Sample{0, 0, DType::kInt32, ReduceOp::kSum, false},
};

cuda::simt::Machine& Machine(uint32_t threads) {
  static std::map<uint32_t, std::unique_ptr<cuda::simt::Machine>> machines;
  std::unique_ptr<cuda::simt::Machine>& machine = machines[threads];
  if (!machine) machine = std::make_unique<cuda::simt::Machine>();
  return *machine;
}

class Jobs {
 public:
  Job& Get(int processes) {
    std::unique_ptr<Job>& job = jobs_[processes];
    if (!job) job = std::make_unique<Job>(processes, Wire::kShared, 256, 2);
    return *job;
  }

 private:
  std::map<int, std::unique_ptr<Job>> jobs_;
};

// Launches twice on one communicator without a pause, the second time in place where that is allowed.
void Check(Job& job, const Schedule& schedule, const Sample& sample, cuda::Protocol protocol, uint32_t threads,
           uint64_t seed) {
  Settings settings;
  settings.dtype = sample.dtype;
  settings.op = sample.op;
  settings.divisor = sample.mean ? schedule.ranks() : 0;
  settings.block = sample.block + sample.tiles * (1024 / ElementBytes(sample.dtype) * schedule.pieces + 7);
  settings.protocol = schedule.messages() ? jaxring::Protocol::kSimple : jaxring::Protocol::kMemory;
  settings.tile = 16;
  Call call(&job, schedule, settings);
  const std::vector<Buffer> inputs = Inputs(call, sample.tiles);
  const std::vector<Buffer> expected = OnCpu(call, inputs);

  CudaPlan plan(schedule, settings, 2);
  ClusterShape shape{schedule.ranks(),         static_cast<uint32_t>(schedule.nlanes), schedule.placement, protocol, 4,
                     plan.slot_bytes(protocol)};
  Cluster cluster(shape);
  const bool in_place = schedule.collective == "all_reduce";
  std::vector<Buffer> first = Outputs(call), second = Outputs(call);
  std::vector<cuda::simt::Stream> streams(schedule.ranks());
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const char* in = inputs[rank].data();
    if (in_place) {
      std::memcpy(second[rank].data(), in, inputs[rank].size());
      in = second[rank].data();
    }
    auto check = [&, rank](std::vector<Buffer>& outputs) {
      return [&, rank] {
        if (outputs[rank] == expected[rank]) return;
        std::cerr << call.Describe() << ", cuda protocol " << static_cast<int>(protocol) << ", seed " << seed
                  << ", rank " << rank << ", fault " << cluster.status(rank).fault << std::endl;
        Fail(__FILE__, __LINE__, "the CUDA engine gives the CPU engine's bits");
      };
    };
    // Ranks need not agree on whether they use bulk copies.
    cuda::Args args = plan.Args(cluster, rank, inputs[rank].data(), first[rank].data());
    args.bulk_bytes = rank % 2 == 0 ? 16 : 0;
    streams[rank].push_back(LaunchOf(args, threads, check(first)));
    args = plan.Args(cluster, rank, in, second[rank].data());
    args.bulk_bytes = rank % 3 != 0 ? 100 : 0;
    streams[rank].push_back(LaunchOf(args, threads, check(second)));
  }
  CHECK(Machine(threads).Run(streams, {seed, {}}));
  for (int rank = 0; rank < schedule.ranks(); ++rank) CHECK_EQ(cluster.status(rank).fault, 0u);
}

#if defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

CASE("all collectives and algorithms") {
  Jobs jobs;
  size_t number = 0;
  for (const Schedule& schedule : Schedules()) {
    // The kernels have no gather and spread steps, and the planner for GPUs does not plan any.
    if (schedule.group > 1) continue;
    if (schedule.half != Half::kBoth) continue;
    ++number;
    for (size_t i = 0; i < kSamples.size(); ++i) {
      if (kSlow && ((number + i) % 9 != 0 || schedule.ranks() * schedule.nlanes > 10)) continue;
      const int turn = static_cast<int>(number + i);
      if (LeftOut(number * kSamples.size() + i)) continue;
      const uint64_t seed = turn % 2 == 0 ? 0 : number * 100 + i + 1;
      auto protocol = schedule.messages() ? static_cast<cuda::Protocol>(turn % 3) : cuda::Protocol::kSimple;
      Check(jobs.Get(schedule.processes()), schedule, kSamples[i], protocol, 32, seed);
    }
  }
  CHECK(number > 200);
}

}  // namespace
}  // namespace jaxring::test
