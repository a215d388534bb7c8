// How the threads of a warp wait for each other around an epilogue's functions, by the CUDA kernels' own source on the
// shim: a ring that halves sums is right, without the barriers of a warp its results are wrong, and launches whose peer
// is missing end.
#include <bit>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda/kernels/epilogue_args.h"
#include "tests/cuda/cuda_epilogue.h"
#include "tests/cuda/cuda_launch.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

// A ring of 4 ranks sums float32 or bfloat16, and halves the sums as bfloat16. All of that is exact. Its slices have
// three chunks.
struct Halved {
  explicit Halved(cuda::Protocol protocol, DType data = DType::kF32)
      : schedule(WithEpilogue(Find("all_reduce ring 4x1 x1"))),
        settings(SettingsOfHalved(data)),
        plan(schedule, settings, 2, kLonger) {
    cluster = std::make_unique<Cluster>(ClusterShape{4, static_cast<uint32_t>(schedule.nlanes), schedule.placement,
                                                     protocol, 4, plan.slot_bytes(protocol)});
    for (int rank = 0; rank < 4; ++rank) {
      inputs.emplace_back(ElementBytes(data) * kBlock);
      outputs.emplace_back(2 * kBlock);
      for (uint64_t i = 0; i < kBlock; ++i) {
        const float value = static_cast<float>(i % 50) + static_cast<float>(rank);
        if (data == DType::kF32) {
          Put<float>(inputs[rank].data() + 4 * i, value);
        } else {
          Put<uint16_t>(inputs[rank].data() + 2 * i, static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
        }
      }
    }
  }
  cuda::simt::Kernel Launch(int rank, uint64_t timeout_ns) {
    EpilogueBuffers buffers;
    buffers.parameters = {reinterpret_cast<char*>(&factor), 4};
    cuda::Args args = plan.Args(*cluster, rank, inputs[rank].data(), outputs[rank].data());
    args.failure.timeout_ns = timeout_ns;
    return LaunchOf(cuda::EpilogueOn(*settings.epilogue, buffers), args, 2 * cuda::kWarp);
  }
  bool Right() {
    bool right = true;
    for (Buffer& output : outputs) {
      for (uint64_t i = 0; i < kBlock; ++i) {
        const uint32_t bits = uint32_t{Get<uint16_t>(output.data() + 2 * i)} << 16;
        right = right && std::bit_cast<float>(bits) == 0.5f * static_cast<float>(4 * (i % 50) + 6);
      }
    }
    return right;
  }

  static constexpr uint64_t kBlock = 6800;
  static Settings SettingsOfHalved(DType data) {
    Settings settings;
    settings.dtype = data;
    settings.block = kBlock;
    settings.epilogue = MakeEpilogue({"scale", "cast"}, data, DType::kBF16, {});
    return settings;
  }
  Schedule schedule;
  Settings settings;
  CudaPlan plan;
  std::unique_ptr<Cluster> cluster;
  std::vector<Buffer> inputs, outputs;
  float factor = 0.5f;
};

bool PlayHalved(cuda::Protocol protocol, const cuda::simt::Options& options, DType data = DType::kF32) {
  Halved halved(protocol, data);
  std::vector<cuda::simt::Stream> streams(4);
  for (int rank = 0; rank < 4; ++rank) streams[rank].push_back(halved.Launch(rank, uint64_t{1} << 60));
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, options));
  return halved.Right();
}

CASE("a ring that halves sums") {
  for (uint64_t seed = 0; seed <= 3; ++seed) {
    for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL}) {
      for (DType data : {DType::kF32, DType::kBF16}) CHECK(PlayHalved(protocol, {seed, {}}, data));
    }
  }
}

CASE("without one of the barriers of a warp the results are wrong") {
  if (cuda::simt::kThreadSanitizer) return;
  std::set<uint32_t> barriers;  // by their lines
  cuda::simt::Faults faults;
  faults.lost_warp_barrier = [&](uint32_t line) {
    barriers.insert(line);
    return false;
  };
  CHECK(PlayHalved(cuda::Protocol::kSimple, {1, faults}));
  // Translated PTX has all barriers in one place.
  const bool translated = std::getenv("PTX_PLAYED") != nullptr;
  CHECK_EQ(barriers.size(), translated ? 1u : 4u);
  // The first in a chunk is behind a vote, which orders all accesses here, as on a GPU it need not.
  if (!translated) barriers.erase(barriers.begin());
  for (const uint32_t lost : barriers) {
    faults.lost_warp_barrier = [lost](uint32_t line) { return line == lost; };
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL}) {
        // For float32 a thread stores the results from where it leaves its own accumulators next.
        for (DType data : {DType::kF32, DType::kBF16}) wrong += !PlayHalved(protocol, {seed, faults}, data);
      }
    }
    if (wrong == 0) Fail(__FILE__, __LINE__, ("without the barrier in line " + std::to_string(lost)).c_str());
  }
}

CASE("launches whose peer is missing end") {
  for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL}) {
    Halved halved(protocol);
    constexpr int kMissing = 2;
    std::vector<cuda::simt::Stream> streams(4);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != kMissing) streams[rank].push_back(halved.Launch(rank, 1'000'000));
    }
    cuda::simt::Machine machine;
    CHECK(machine.Run(streams, {7, {}}));
    bool named = false;
    for (int rank = 0; rank < 4; ++rank) {
      const cuda::Status& status = halved.cluster->status(rank);
      CHECK_EQ(status.fault, static_cast<uint32_t>(rank == kMissing ? cuda::Fault::kNone : cuda::Fault::kTimeout));
      named = named || (rank != kMissing && status.peer == kMissing);
    }
    CHECK(named);
  }
}

}  // namespace
}  // namespace jaxring::test
