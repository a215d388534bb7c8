// What a profiler sees of launches: NVTX loads a test tool by its own mechanism, which records the ranges of an
// all-reduce.
#include <dlfcn.h>

#include "tests/cuda/host/cuda_host.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Three rounds of a plan with the range name `range`, which may be empty.
void Play(Processes& here, const Schedule& schedule, const std::string& range) {
  const GroupShape shape{schedule.name, {0, 0, 0, 0}, {0, 0, 0, 0}, cuda::Protocol::kSimple, 1, 8192, 4};
  auto group = Join(here, shape);
  auto plan = PlanOf(here, group, shape, schedule, DType::kInt32, 50, [&](auto& spec) { spec.range = range; });
  std::vector<char*> in, out;
  for (int r = 0; r < 4; ++r) {
    for (auto* kind : {&in, &out}) kind->push_back(cuda::ThisGpu().memory.Allocate(DeviceOf(r), 200));
  }
  for (int round = 0; round < 3; ++round) {
    for (int r = 0; r < 4; ++r) CHECK(plan->Launch(r, in[r], out[r], 200, 200, StreamOf(r)).ok());
    for (int r = 0; r < 4; ++r) cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
  }
}

void Launches(Processes& here) {
  const Schedule &reduce = Find("all_reduce direct 1x4 x1"), &broadcast = Find("broadcast direct 1x4 x1");
  Play(here, reduce, "all_reduce sum 200B over r: direct/memory");
  Play(here, broadcast, "");
  void* tool = dlopen(JAXRING_NVTX_TOOL, RTLD_NOW | RTLD_NOLOAD);  // succeeds only if NVTX has loaded it
  CHECK(tool != nullptr);
  auto* saw = reinterpret_cast<const char* (*)()>(dlsym(tool, "NvtxToolSaw"));
  const std::string text = saw();
  CHECK_EQ(Count(text, "jaxring: all_reduce sum 200B over r: direct/memory 200\n"), 12);
  CHECK_EQ(Count(text, "jaxring: " + broadcast.name + " 200\n"), 12);
  CHECK_EQ(Count(text, "jaxring: pop\n"), 24);
}

CASE("ranges have the calls' names") {
  CHECK(setenv("NVTX_INJECTION64_PATH", JAXRING_NVTX_TOOL, 1) == 0);
  CHECK_EQ(std::string(cuda::NvtxVersion()), "3");
  CHECK_EQ(RunProcesses(1, Launches)[0], 0);
}

}  // namespace
}  // namespace jaxring::test
