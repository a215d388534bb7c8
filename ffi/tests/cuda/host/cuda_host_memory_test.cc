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

// Buffers that the driver's virtual memory calls made are shared by file descriptors, and are read and written in
// place.
void VirtualMemory(Processes& here) {
  const std::vector<int> process = {0, 0, 1, 1}, domain = {0, 0, 0, 0};
  for (const char* collective : {"all_reduce", "all_to_all"}) {
    const Schedule& schedule = Find(std::string(collective) + " direct 1x4 x1");
    uint64_t staged = 0;
    Play(here, ShapeOf(schedule, process, domain, cuda::Protocol::kSimple), schedule, 1000, {}, &staged, 0, 0, true);
    CHECK_EQ(staged, 0u);
  }
}

#if !defined(JAXRING_REAL_GPU)
// Memory whose export fails is copied to replacement buffers.
void Unexportable(Processes& here) {
  cuda::fake::options().no_ipc = true;
  const Schedule& schedule = Find("all_gather direct 1x4 x1");
  uint64_t staged = 0;
  Play(here, ShapeOf(schedule, {0, 0, 1, 1}, {0, 0, 0, 0}, cuda::Protocol::kSimple), schedule, 1000, {}, &staged);
  CHECK_EQ(staged, 6u);
}
#endif

// XLA may capture a site's first call, when the peers have not mapped the buffers yet. Another thread then makes the
// CUDA calls that a capturing thread may not make.
void CapturedFirst(Processes& here) {
  const Schedule& schedule = Find("all_gather direct 1x4 x1");
  for (bool zero_copy : {true, false}) {
    const GroupShape shape = ShapeOf(schedule, {0, 0, 1, 1}, {0, 0, 0, 0}, cuda::Protocol::kSimple);
    auto group = Join(here, shape);
    auto plan = PlanOf(group, shape, schedule, DType::kInt32, 1000,
                       [&](cuda::LaunchPlanSpec& spec) { spec.zero_copy = zero_copy; });
    std::map<int, Buffers> buffers;
    std::vector<std::function<void()>> graphs;
    for (int r = 0; r < schedule.ranks(); ++r) {
      if (!group->local(r)) continue;
      Buffers& buffer = buffers.emplace(r, Buffers(r, schedule, 1000)).first->second;
      graphs.push_back(Captured(StreamOf(r), [&] {
        const Status status = plan->Launch(r, buffer.in, buffer.out, plan->in_bytes(), plan->out_bytes(), StreamOf(r));
        if (!status.ok()) std::cerr << status.message << std::endl;
        CHECK(status.ok());
      }));
    }
    for (int round = 0; round < 3; ++round) {
      for (auto& [r, buffer] : buffers) buffer.Fill(round);
      for (auto& graph : graphs) graph();
      for (auto& [r, buffer] : buffers) cuda::ThisGpu().Synchronize(DeviceOf(r), StreamOf(r));
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

CASE("copy_death") { PlayIn(2, CopyDeath, kDeathEnds); }

CASE("staged") { PlayIn(2, Staged); }

#if !defined(JAXRING_REAL_GPU)
CASE("unexportable") { PlayIn(2, Unexportable); }
#endif

CASE("virtual_memory") { PlayIn(2, VirtualMemory); }

CASE("captured_first") { PlayIn(2, CapturedFirst); }

CASE("copies_one_process") { PlayIn(1, CopyEngine); }

CASE("copies_two_processes") { PlayIn(2, CopyEngine); }

}  // namespace
}  // namespace jaxring::test
