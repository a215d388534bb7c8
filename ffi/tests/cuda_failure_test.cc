// The CUDA engine when things go wrong: waits end in time and say for whom they waited, and a broken machine is
// noticed.
#include <memory>
#include <set>

#include "ffi/tests/cuda_launch.h"
#include "ffi/tests/job.h"

namespace jaxring::test {
namespace {

using cuda::Fault;
using cuda::Wait;
constexpr uint32_t kThreads = 64;

// One float32 all-reduce or other collective, with everything that its launches need.
struct Scene {
  Scene(const std::string& name, cuda::Protocol protocol, uint64_t block)
      : schedule(Find(name)), plan((settings.dtype = DType::kF32, settings.block = block, schedule), settings, 2) {
    cluster = std::make_unique<Cluster>(ClusterShape{schedule.ranks(), static_cast<uint32_t>(schedule.nlanes),
                                                     schedule.placement, protocol, 4, plan.slot_bytes(protocol)});
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      inputs.push_back(Input(settings, schedule.in_blocks, rank, 1));
      outputs.emplace_back(block * 4 * schedule.out_blocks);
    }
  }
  cuda::Args Args(int rank) { return plan.Args(*cluster, rank, inputs[rank].data(), outputs[rank].data()); }

  Settings settings;
  const Schedule& schedule;
  CudaPlan plan;
  std::unique_ptr<Cluster> cluster;
  std::vector<Buffer> inputs, outputs;
};

struct Case {
  const char* name;
  cuda::Protocol protocol;
  Wait wait;
};
constexpr Case kCases[] = {
    {"all_reduce ring 4x1 x1", cuda::Protocol::kSimple, Wait::kMessage},
    {"all_reduce ring 4x1 x1", cuda::Protocol::kLL, Wait::kMessage},
    {"all_reduce ring 4x1 x1", cuda::Protocol::kLL128, Wait::kMessage},
    {"all_reduce direct 1x4 x1", cuda::Protocol::kSimple, Wait::kBegin},
};

// A rank that never comes: all others give up, and those next to it say that it was for it that they waited.
void CheckMissingRank(const Case& c, bool abort) {
  Scene scene(c.name, c.protocol, 5000);
  constexpr int kMissing = 2;
  std::vector<cuda::simt::Stream> streams(4);
  for (int rank = 0; rank < 4; ++rank) {
    cuda::Args args = scene.Args(rank);
    args.timeout_ns = abort ? uint64_t{1} << 60 : 1'000'000;
    if (rank != kMissing) streams[rank].push_back(LaunchOf(args, kThreads));
  }
  if (abort) {  // by the host, after a while
    uint32_t* word = scene.cluster->abort();
    auto wait = [word] {
      if (cuda::ThreadIndex() != 0) return;
      while (cuda::Clock() < 500'000) cuda::Pause(1);
      cuda::StoreRelaxed(word, 1u);
    };
    streams[kMissing].push_back({1, 1, wait, {}});
  }
  if (abort && c.wait == Wait::kBegin) {
    // Lanes that fail stay until their memory is their own again, however long: here nobody comes to say so.
    for (auto& stream : streams) stream.clear();
    for (int rank = 0; rank < 4; ++rank) {
      cuda::Args args = scene.Args(rank);
      args.timeout_ns = 2'000'000;
      if (rank != kMissing) streams[rank].push_back(LaunchOf(args, kThreads));
    }
    *scene.cluster->abort() = 1;
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {7, {}}));
  std::set<int> awaited;
  for (int rank = 0; rank < 4; ++rank) {
    const cuda::Status& status = scene.cluster->status(rank);
    if (rank == kMissing) {
      CHECK_EQ(status.fault, 0u);
      continue;
    }
    CHECK_EQ(status.fault, static_cast<uint32_t>(abort ? Fault::kAborted : Fault::kTimeout));
    CHECK_EQ(status.rank, rank);
    CHECK(status.wait == static_cast<uint32_t>(c.wait) || status.wait == static_cast<uint32_t>(Wait::kRoom));
    awaited.insert(status.peer);
  }
  CHECK(awaited.count(kMissing) == 1);
}

// A rank that fails within a lane marks its gate, and its members fail by that and not by their own deadline.
void CheckMark() {
  Scene scene("all_reduce direct 1x4 x1", cuda::Protocol::kSimple, 5000);
  std::vector<cuda::simt::Stream> streams(4);
  std::vector<RankTable> broken = {scene.schedule.tables[1]};
  for (Step& step : broken[0].steps) step.recv_count = 1000;
  for (int rank = 0; rank < 4; ++rank) {
    cuda::Args args = scene.Args(rank);
    if (rank == 1) args.steps = broken[0].steps.data();
    streams[rank].push_back(LaunchOf(args, kThreads));
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {3, {}}));
  for (int rank = 0; rank < 4; ++rank) {
    const cuda::Status& status = scene.cluster->status(rank);
    CHECK_EQ(status.fault, static_cast<uint32_t>(rank == 1 ? Fault::kBadTable : Fault::kPeerFailed));
    if (rank != 1) CHECK_EQ(status.peer, 1);
    CHECK_EQ(scene.cluster->epoch(rank, 0), 0u);
  }
}

// Whether a ring of float32 comes out right on this machine.
bool Right(cuda::Protocol protocol, uint64_t seed, cuda::simt::Faults faults) {
  Scene scene("all_reduce ring 4x1 x1", protocol, 3000);
  std::vector<cuda::simt::Stream> streams(4);
  for (int rank = 0; rank < 4; ++rank) {
    cuda::Args args = scene.Args(rank);
    args.timeout_ns = 20'000'000;
    for (int i = 0; i < 2; ++i) streams[rank].push_back(LaunchOf(args, kThreads));
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {seed, faults}));
  bool right = true;
  for (int rank = 0; rank < 4; ++rank) {
    right = right && scene.cluster->status(rank).fault == 0;
    const float* got = reinterpret_cast<const float*>(scene.outputs[rank].data());
    for (uint64_t i = 0; right && i < 3000; ++i) {
      float sum = 0;
      for (const Buffer& input : scene.inputs) sum += reinterpret_cast<const float*>(input.data())[i];
      right = std::fabs(got[i] - sum) < 1e-5f;
    }
  }
  return right;
}

void CheckFaultsAreSeen() {
  for (cuda::Protocol protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
    cuda::simt::Faults faults;
    (protocol == cuda::Protocol::kSimple ? faults.lost_release : faults.early_flag) = true;
    int seen = 0;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      CHECK(Right(protocol, seed, {}));
      if (cuda::simt::kThreadSanitizer) continue;  // it would report what this breaks
      seen += !Right(protocol, seed, faults);
    }
    CHECK(cuda::simt::kThreadSanitizer || seen > 0);
  }
}

}  // namespace
}  // namespace jaxring::test

int main() {
  using namespace jaxring::test;
  for (const Case& c : kCases) {
    for (bool abort : {false, true}) CheckMissingRank(c, abort);
  }
  CheckMark();
  CheckFaultsAreSeen();
}
