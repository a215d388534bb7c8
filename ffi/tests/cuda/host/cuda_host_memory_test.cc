// How ranks get access to each other's buffers, on the fake GPU: memory that is shared by file descriptors, replacement
// buffers, first calls that are captured, and copy engines. Linked with the real GPU it is cuda_gpu_memory_test.
#include "tests/cuda/host/cuda_host_play.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

// CUDA's legacy IPC does not export the memory, so launches use replacement buffers of our own.
void Staged(Processes& here) {
  const Schedule& schedule = Find("all_gather direct 1x4 x1");
  uint64_t staged = 0;
  Play(
      here, ShapeOf(schedule, {0, 0, 1, 1}, {0, 0, 0, 0}, cuda::Protocol::kSimple), schedule, 1000,
      [](cuda::LaunchPlanSpec& spec) { spec.zero_copy = false; }, &staged);
  CHECK_EQ(staged, 6u);
}

// Buffers that the driver's virtual memory calls made, like XLA's, are shared by file descriptors, and those of
// cudaMalloc by legacy IPC. Both are read and written in place.
void InPlace(Processes& here, bool is_virtual) {
  const std::vector<int> process = {0, 0, 1, 1}, domain = {0, 0, 0, 0};
  for (const char* collective : {"all_reduce", "all_to_all"}) {
    const Schedule& schedule = Find(std::string(collective) + " direct 1x4 x1");
    uint64_t staged = 0;
    Play(here, ShapeOf(schedule, process, domain, cuda::Protocol::kSimple), schedule, 1000, {}, &staged, 0, 0,
         is_virtual);
    CHECK_EQ(staged, 0u);
  }
  CHECK_EQ(here.runtime->Counters()["shared_by_handle"] > 0, !is_virtual);
}
void VirtualMemory(Processes& here) { InPlace(here, true); }
void LegacyIpc(Processes& here) { InPlace(here, false); }

#if !defined(JAXRING_REAL_GPU)
// Memory whose export fails is copied to replacement buffers.
void Unexportable(Processes& here) {
  cuda::fake::options().no_ipc = true;
  const Schedule& schedule = Find("all_gather direct 1x4 x1");
  uint64_t staged = 0;
  Play(here, ShapeOf(schedule, {0, 0, 1, 1}, {0, 0, 0, 0}, cuda::Protocol::kSimple), schedule, 1000, {}, &staged, 0, 0,
       false);
  CHECK_EQ(staged, 6u);
}

// One rank for each process, and its buffers, which the peers have not mapped.
struct Unmapped {
  Unmapped(Processes& processes, uint64_t block)
      : here(processes), schedule(Find("all_reduce direct 1x2 x1")), elements(block) {
    const GroupShape shape = ShapeOf(schedule, {0, 1}, {0, 0}, cuda::Protocol::kSimple);
    group = Join(here, shape);
    plan = PlanOf(here, group, shape, schedule, DType::kInt32, elements,
                  [](cuda::LaunchPlanSpec& spec) { spec.timeout_s = kSlow ? 60 : 5; });
    buffers = std::make_unique<Buffers>(here.own, schedule, elements, true);
  }
  std::string Share() {
    return group->memory().ShareBuffers(here.own, buffers->in, plan->in_bytes(), buffers->out, plan->out_bytes());
  }
  // Whether buffers are copied or not, it is one node of a graph, which XLA updates when it captures a call anew.
  void Launch(int round) {
    buffers->Fill(round);
    const uint64_t before = cuda::fake::Enqueued(StreamOf(here.own));
    const Status status =
        plan->Launch(here.own, buffers->in, buffers->out, plan->in_bytes(), plan->out_bytes(), StreamOf(here.own));
    if (!status.ok()) std::cerr << status.message << std::endl;
    CHECK(status.ok());
    CHECK_EQ(cuda::fake::Enqueued(StreamOf(here.own)) - before, 1u);
  }
  void Check(int round) {
    cuda::ThisGpu().streams.Synchronize(DeviceOf(here.own), StreamOf(here.own));
    buffers->Check(round);
  }
  // Launches until this process copies its buffers no more, and so does the other.
  void UntilInPlace(const std::string& key) {
    for (int round = 1;; ++round) {
      CHECK(round < 400);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const uint64_t before = plan->staged_launches();
      Launch(round);
      Check(round);
      const std::string name = key + std::to_string(round) + "/";
      here.store->Set(name + std::to_string(here.own), plan->staged_launches() == before ? "in place" : "staged");
      if (here.store->Get(name + "0") == "in place" && here.store->Get(name + "1") == "in place") return;
    }
  }
  Processes& here;
  const Schedule& schedule;
  uint64_t elements;
  std::shared_ptr<cuda::Communicator> group;
  std::shared_ptr<cuda::LaunchPlan> plan;
  std::unique_ptr<Buffers> buffers;
};

// The driver maps memory behind running kernels: rank 0's runs and waits for rank 1, whose launch therefore must not
// wait until process 0 has mapped its buffers. Later launches use these in place.
void MapsBehindKernels(Processes& here) {
  cuda::fake::options().map_behind_kernels = true;
  Unmapped ranks(here, 1000);
  if (here.own == 1) here.store->Get("rank 0's kernel runs");
  ranks.Launch(0);
  if (here.own == 0) {
    while (cuda::fake::RunningKernels() == 0) std::this_thread::yield();
    here.store->Set("rank 0's kernel runs", "");
  }
  ranks.Check(0);
  CHECK_EQ(ranks.plan->staged_launches(), 1u);
  ranks.UntilInPlace("mapped ");
}

// One allocation that a peer cannot map is copied to a replacement, and others are used in place all the same. What
// fails is tried again later.
void OneFailedMapping(Processes& here) {
  cuda::fake::options().no_import_of = BytesOf(Find("all_reduce direct 1x2 x1"), 50'000);
  Unmapped large(here, 50'000);
  const std::string how = large.Share();
  const std::string peer = std::to_string(1 - here.own), own = std::to_string(here.own);
  CHECK_EQ(how, "staged: the input of rank " + own + " is not shared, since process " + peer +
                    " cannot map device memory of process " + own + ": cuMemMap: out of memory (2)");
  for (int round = 0; round < 3; ++round) {
    large.Launch(round);
    large.Check(round);
  }
  CHECK_EQ(large.plan->staged_launches(), 3u);
  CHECK_EQ(here.runtime->Counters()["failed_mappings"], 1u);
  Unmapped small(here, 1000);
  CHECK_EQ(small.Share(), "shared by file descriptor");
  Meet(here, "shared");
  small.Launch(0);
  small.Check(0);
  CHECK_EQ(small.plan->staged_launches(), 0u);
  __atomic_store_n(&cuda::fake::options().no_import_of, 0, __ATOMIC_RELAXED);
  for (int turn = 0; large.Share() != "shared by file descriptor"; ++turn) {
    CHECK(turn < 6000);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Meet(here, "mapped later");
  large.Launch(3);
  large.Check(3);
  CHECK_EQ(large.plan->staged_launches(), 3u);
  CHECK_EQ(here.runtime->Counters()["failed_mappings"], 1u);
}
#endif

// XLA may capture a site's first call, when the peers have not mapped the buffers yet. Another thread then makes the
// CUDA calls that a capturing thread may not make.
void CapturedFirst(Processes& here) {
  const Schedule& schedule = Find("all_gather direct 1x4 x1");
  for (bool zero_copy : {true, false}) {
    const GroupShape shape = ShapeOf(schedule, {0, 0, 1, 1}, {0, 0, 0, 0}, cuda::Protocol::kSimple);
    auto group = Join(here, shape);
    auto plan = PlanOf(here, group, shape, schedule, DType::kInt32, 1000,
                       [&](cuda::LaunchPlanSpec& spec) { spec.zero_copy = zero_copy; });
    std::map<int, Buffers> buffers;
    std::vector<std::function<void()>> graphs;
    for (int r = 0; r < schedule.ranks(); ++r) {
      if (!group->ranks().local(r)) continue;
      Buffers& buffer = buffers.emplace(r, Buffers(r, schedule, 1000)).first->second;
      graphs.push_back(Captured(r, [&] {
        const Status status = plan->Launch(r, buffer.in, buffer.out, plan->in_bytes(), plan->out_bytes(), StreamOf(r));
        if (!status.ok()) std::cerr << status.message << std::endl;
        CHECK(status.ok());
      }));
    }
    for (int round = 0; round < 3; ++round) {
      for (auto& [r, buffer] : buffers) buffer.Fill(round);
      for (auto& graph : graphs) graph();
      for (auto& [r, buffer] : buffers) cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
      for (auto& [r, buffer] : buffers) buffer.Check(round);
    }
  }
}

// Copy engines copy whole blocks, and slices of them, between epoch barriers; launches are also replayed.
void CopyEngine(Processes& here) {
  const std::vector<int> domain = {0, 0, 0, 0};
  const std::vector<int> process = here.count == 1 ? domain : std::vector<int>{0, 0, 1, 1};
  for (const char* collective : {"all_to_all", "all_gather", "broadcast", "gather", "scatter", "permute"}) {
    const Schedule& schedule = Find(std::string(collective) + " direct 1x4 x1");
    for (uint64_t staging : {1 << 12, 1 << 16}) {
      if (kSlow && (staging == 1 << 16) != (schedule.collective == "broadcast")) continue;
      Play(here, ShapeOf(schedule, process, domain, cuda::Protocol::kSimple), schedule, 1000, {}, nullptr,
           kSlow ? 0 : 20, staging);
    }
  }
}

void CopyDeath(Processes& here) { DeathIn(here, "all_gather direct 1x4 x1", 1 << 16); }

CASE("virtual_memory") { PlayIn(2, VirtualMemory); }

CASE("staged") { PlayIn(2, Staged); }

#if !defined(JAXRING_REAL_GPU)
CASE("unexportable") { PlayIn(2, Unexportable); }

CASE("maps_behind_kernels") { PlayIn(2, MapsBehindKernels); }

CASE("one_failed_mapping") { PlayIn(2, OneFailedMapping); }
#endif

CASE("legacy_ipc") { PlayIn(2, LegacyIpc); }

CASE("captured_first") { PlayIn(2, CapturedFirst); }

CASE("copies_one_process") { PlayIn(1, CopyEngine); }

CASE("copies_two_processes") { PlayIn(2, CopyEngine); }

// Last, as on a GPU it is the least certain.
CASE("copy_death") { PlayIn(2, CopyDeath, kDeathEnds); }

}  // namespace
}  // namespace jaxring::test
