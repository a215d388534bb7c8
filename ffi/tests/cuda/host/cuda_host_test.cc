// The CUDA engine's host half end to end on the fake GPU: ranks in one process and in several, sharing memory and over
// sockets, with the kernels' own source on the SIMT shim. Linked with the real GPU it is cuda_gpu_test.
#include <optional>

#include "tests/cuda/host/cuda_host_play.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

constexpr const char* kCollectives[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                        "reduce",     "gather",     "scatter",        "permute"};

void OneProcess(Processes& here) {
  for (const char* collective : kCollectives) {
    const Schedule& schedule = Find(std::string(collective) + " direct 1x4 x1");
    Play(here, ShapeOf(schedule, {0, 0, 0, 0}, {0, 0, 0, 0}, cuda::Protocol::kSimple), schedule, kSlow ? 500 : 3000);
  }
  for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
    const Schedule& ring = Find("all_reduce ring 4x1 x1");
    Play(here, ShapeOf(ring, {0, 0, 0, 0}, {0, 0, 0, 0}, protocol), ring, 7001);
  }
}

// All ranks address each other's memory, in two processes of two ranks.
void OneDomain(Processes& here) {
  const std::vector<int> process = {0, 0, 1, 1}, domain = {0, 0, 0, 0};
  for (const char* collective : kCollectives) {
    const Schedule& schedule = Find(std::string(collective) + " direct 1x4 x1");
    uint64_t staged = 0;
    Play(here, ShapeOf(schedule, process, domain, cuda::Protocol::kSimple), schedule, 1000, {}, &staged);
    CHECK_EQ(staged, 0u);
  }
  for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
    const Schedule& tree = Find("all_reduce tree 4x1 x1");
    Play(here, ShapeOf(tree, process, domain, protocol), tree, 5000);
  }
}

// Domains that only sockets connect, with slots in pinned memory: whole domains, single ranks, and a mixture.
void Network(Processes& here) {
  int turn = 0;
  for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL}) {
    for (const char* name : {"all_reduce hier_ring 2x2 x1", "all_reduce hier_tree 2x2 x1", "all_to_all direct 2x2 x1",
                             "all_gather ring 2x2 x1", "reduce_scatter ring 2x2 x1", "broadcast tree 2x2 x1"}) {
      if (kSlow && ++turn % 3 != 0) continue;
      const Schedule& schedule = Find(name);
      Play(here, ShapeOf(schedule, {0, 0, 1, 1}, {0, 0, 1, 1}, protocol), schedule, 6000);
    }
  }
  CHECK(here.runtime->Counters()["carried_messages"] > 0);
}

void FourProcesses(Processes& here) {
  // Two hosts of two processes each.
  const Schedule& both = Find("all_reduce hier_ring 2x2 x1");
  Play(here, ShapeOf(both, {0, 1, 2, 3}, {0, 0, 1, 1}, cuda::Protocol::kSimple), both, 4000);
  const Schedule& direct = Find("all_reduce direct 1x4 x1");
  Play(here, ShapeOf(direct, {0, 1, 2, 3}, {0, 0, 0, 0}, cuda::Protocol::kSimple), direct, 4000);
}

// Captured launches can be replayed, since counters are in device memory.
void Graphs(Processes& here) {
  const int replays = kRealGpu ? 1000 : kSlow ? 10 : 30;
  const Schedule& direct = Find("all_reduce direct 1x4 x1");
  Play(here, ShapeOf(direct, {0, 0, 1, 1}, {0, 0, 0, 0}, cuda::Protocol::kSimple), direct, 500, {}, nullptr, replays);
  const Schedule& ring = Find("all_reduce ring 4x1 x1");
  Play(here, ShapeOf(ring, {0, 0, 1, 1}, {0, 0, 0, 0}, cuda::Protocol::kLL), ring, 500, {}, nullptr, replays);
}

// The processes begin two calls of one communicator, of one size, in different orders: neither takes the other's data.
void OtherOrderBy(Processes& here, const char* name, const std::vector<int>& domain, cuda::Protocol protocol,
                  std::optional<cuda::Fused> fused = {}) {
  const Schedule& schedule = Find(name);
  GroupShape shape = ShapeOf(schedule, {0, 1}, domain, protocol);
  shape.stage_bytes = 8192;
  constexpr uint64_t kElements = 300;
  auto group = Join(here, shape);
  Connect(here, *group, shape, schedule);
  std::vector<std::shared_ptr<cuda::LaunchPlan>> plans;
  std::vector<Buffers> buffers;
  for (const char* what : {"the first call", "the second call"}) {
    plans.push_back(PlanOf(here, group, shape, schedule, DType::kInt32, kElements, [&](cuda::LaunchPlanSpec& spec) {
      spec.what = what;
      spec.call = 0x10001 * static_cast<uint32_t>(plans.size() + 1);
      spec.kernel.fused = fused;
      spec.trap = false;
    }));
    here.runtime->Watch(plans.back());
    buffers.emplace_back(here.own, schedule, kElements);
    buffers.back().Fill(static_cast<int>(buffers.size()));
    if (domain[0] != domain[1]) continue;
    group->memory().ShareBuffers(here.own, buffers.back().in, plans.back()->in_bytes(), buffers.back().out,
                                 plans.back()->out_bytes());
  }
  Meet(here, shape.name + " shared");
  const Buffers& own = buffers[here.own];
  cuda::LaunchPlan& plan = *plans[here.own];
  CHECK(plan.Launch(here.own, own.in, own.out, plan.in_bytes(), plan.out_bytes(), StreamOf(here.own)).ok());
  cuda::ThisGpu().streams.Synchronize(DeviceOf(here.own), StreamOf(here.own));
  std::string why;
  for (int turn = 0; !group->health().Broken(&why) && turn < 20'000; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::cout << why << std::endl;
  CHECK(why.find("collectives in another order") != std::string::npos);
  CHECK(why.find("the first call") != std::string::npos && why.find("the second call") != std::string::npos);
}

void OtherOrder(Processes& here) {
  const char* const kMemory = "all_reduce direct 1x2 x1";
  OtherOrderBy(here, kMemory, {0, 0}, cuda::Protocol::kSimple);
  OtherOrderBy(here, kMemory, {0, 0}, cuda::Protocol::kSimple, cuda::Fused::kAllReduceTwoShot);
  OtherOrderBy(here, kMemory, {0, 0}, cuda::Protocol::kSimple, cuda::Fused::kAllReduceOneShot);
  // Messages through memory, and over the network.
  const char* const kMessages = "all_reduce ring 2x1 x1";
  for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
    OtherOrderBy(here, kMessages, {0, 0}, protocol);
    if (protocol != cuda::Protocol::kLL128) OtherOrderBy(here, kMessages, {0, 1}, protocol);
  }
}

void Death(Processes& here) { DeathIn(here, "all_reduce direct 1x4 x1"); }

CASE("one_process") { PlayIn(1, OneProcess); }

CASE("one_domain") { PlayIn(2, OneDomain); }

CASE("network") { PlayIn(2, Network); }

CASE("four_processes") { PlayIn(4, FourProcesses); }

CASE("graphs") { PlayIn(2, Graphs); }

// A rank would write its lines beyond those that its peers read.
void TooLongForAStage(Processes& here) {
  const Schedule& schedule = Find("all_reduce direct 1x2 x1");
  GroupShape shape = ShapeOf(schedule, {0, 1}, {0, 0}, cuda::Protocol::kSimple);
  shape.stage_bytes = 8192;
  auto group = Join(here, shape);
  for (const uint64_t elements : {1024, 1025}) {
    std::string why;
    try {
      PlanOf(here, group, shape, schedule, DType::kInt32, elements,
             [](cuda::LaunchPlanSpec& spec) { spec.kernel.fused = cuda::Fused::kAllReduceOneShot; });
    } catch (const std::invalid_argument& error) {
      why = error.what();
    }
    CHECK_EQ(why.find("4100 bytes do not fit a stage of the one-shot all-reduce") != std::string::npos,
             elements == 1025);
  }
}
CASE("too_long_for_a_stage") { PlayIn(2, TooLongForAStage); }
CASE("other_order") { PlayIn(2, OtherOrder); }

// Last, as on a GPU it is the least certain.
CASE("death") { PlayIn(2, Death, kDeathEnds); }

}  // namespace
}  // namespace jaxring::test
