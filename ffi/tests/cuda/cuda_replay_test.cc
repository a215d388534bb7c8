// Repeats launches of the CUDA engine as a graph replays them: with the same arguments, and without the host in
// between. Also with counters that are about to wrap.
#include <algorithm>
#include <memory>

#include "tests/cuda/cuda_launch.h"
#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr int kReplays = 50;
#else
constexpr int kReplays = 1000;
#endif

// All ranks replay, and wait for each other only within the collective. Each replay's input is the output of the one
// before.
void Replay(const char* name, cuda::Protocol protocol, int replays, uint64_t start, uint64_t seed,
            uint64_t bulk_bytes = 0) {
  const Schedule& schedule = Find(name);
  Settings settings;
  settings.dtype = DType::kUInt32;
  settings.block = 150;
  CudaPlan plan(schedule, settings, 2);
  Cluster cluster({schedule.ranks(), static_cast<uint32_t>(schedule.nlanes), schedule.placement, protocol, 4,
                   plan.slot_bytes(protocol)});
  if (start != 0) cluster.StartAt(start);
  const uint32_t ranks = static_cast<uint32_t>(schedule.ranks());
  std::vector<Buffer> buffers;
  std::vector<uint32_t> expected(settings.block);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    buffers.emplace_back(settings.block * 4);
    for (uint32_t i = 0; i < settings.block; ++i) {
      Put<uint32_t>(buffers[rank].data() + 4 * i, i * 77 + rank);
      expected[i] += i * 77 + rank;
    }
  }
  std::vector<cuda::simt::Stream> streams(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    // The launch is in place, so its sum is the next launch's input.
    cuda::Args args = plan.Args(cluster, rank, buffers[rank].data(), buffers[rank].data());
    args.bulk_bytes = bulk_bytes;
    const auto launch = LaunchOf(args, 32);
    streams[rank].assign(replays, launch);
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {seed, {}}));
  uint32_t factor = 1;
  for (int i = 1; i < replays; ++i) factor *= ranks;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    CHECK_EQ(cluster.status(rank).fault, 0u);
    for (uint32_t i = 0; i < settings.block; ++i) {
      CHECK_EQ(Get<uint32_t>(buffers[rank].data() + 4 * i), expected[i] * factor);
    }
  }
}

// The number of ranks is odd, so that repeated multiplication by it does not clear the sums' low bits.
CASE("many replays") {
  const int replays = std::max(50, kReplays / static_cast<int>(Share()));
  for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
    Replay("all_reduce ring 2+1+2 x1", protocol, replays, 0, 0);
    Replay("all_reduce hier_ring 2+1+2 x1", protocol, 40, 0, 5, 16);
  }
  Replay("all_reduce direct 1x4 x1", cuda::Protocol::kSimple, replays, 0, 0, 16);
}

// LL's flags have 16 bits of a message's number, and after every 2^15 messages old flags are overwritten.
CASE("counters and flags wrap") {
  for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
    for (uint64_t near : {uint64_t{1} << 15, uint64_t{1} << 16, uint64_t{1} << 32}) {
      Replay("all_reduce ring 2+1+2 x1", protocol, 8, near - 12, 9);
    }
  }
}

}  // namespace
}  // namespace jaxring::test
