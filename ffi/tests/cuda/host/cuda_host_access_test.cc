// Buffers that are not for all who address them, on the fake GPU: memory of the driver's virtual memory calls is for
// the devices that are named for it, and is shared, named and mapped mapping by mapping.
#include "tests/cuda/host/cuda_host_play.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

// An all-reduce of ranks in these processes, a device each, and its buffers. Where a process has two devices, the
// memory of each is not for the other until it is granted.
struct Ranks {
  Ranks(Processes& processes, const std::vector<int>& process, uint64_t block, uint64_t mapping_bytes = 0,
        bool fused = false)
      : here(processes), schedule(Find("all_reduce direct 1x" + std::to_string(process.size()) + " x1")) {
    shape = ShapeOf(schedule, process, std::vector<int>(process.size(), 0), cuda::Protocol::kSimple);
    group = Join(here, shape);
    plan = PlanOf(here, group, shape, schedule, DType::kInt32, block, [&](cuda::LaunchPlanSpec& spec) {
      if (fused) spec.kernel.fused = cuda::Fused::kAllReduceTwoShot;
    });
    cuda::fake::options().own_device_only = process[0] == process[1];
    cuda::fake::options().mapping_bytes = mapping_bytes;
    for (int r = 0; r < schedule.ranks(); ++r) {
      if (group->ranks().local(r)) buffers.emplace(r, Buffers(r, schedule, block));
    }
    cuda::fake::options().own_device_only = false;
    cuda::fake::options().mapping_bytes = 0;
  }
  std::string Share(int rank) {
    const Buffers& own = buffers.at(rank);
    return group->memory().ShareBuffers(rank, own.in, plan->in_bytes(), own.out, plan->out_bytes());
  }
  // Returns how many of this process's launches copied their buffers.
  uint64_t Play(int round) {
    const uint64_t before = plan->staged_launches();
    for (auto& [r, own] : buffers) {
      own.Fill(round);
      const Status status = plan->Launch(r, own.in, own.out, plan->in_bytes(), plan->out_bytes(), StreamOf(r));
      if (!status.ok()) std::cerr << status.message << std::endl;
      CHECK(status.ok());
    }
    for (auto& [r, own] : buffers) {
      cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
      own.Check(round);
    }
    return plan->staged_launches() - before;
  }
  // Plays until no process copies any more.
  void UntilInPlace(int round) {
    for (bool all = false; !all; ++round) {
      CHECK(round < 400);
      const std::string key = shape.name + " in place " + std::to_string(round) + "/";
      here.store->Set(key + std::to_string(here.own), Play(round) == 0 ? "in place" : "staged");
      all = true;
      for (int p = 0; p < here.count; ++p) all &= here.store->Get(key + std::to_string(p)) == "in place";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  Processes& here;
  const Schedule& schedule;
  GroupShape shape;
  std::shared_ptr<cuda::Communicator> group;
  std::shared_ptr<cuda::LaunchPlan> plan;
  std::map<int, Buffers> buffers;
};

// The first launches wait neither for access of the process's other device nor for other processes' mappings. Buffers
// that are shared while a call is planned are used in place at once.
void NotGranted(Processes& here) {
  const bool alone = here.count == 1;
  const std::vector<int> process = alone ? std::vector<int>{0, 0} : std::vector<int>{0, 0, 1, 1};
  const std::string granted = "granted to the process's other devices, which XLA's allocator had not named";
  for (bool planned : {false, true}) {
    Ranks ranks(here, process, 1000, 0, planned);
    for (auto& [r, buffer] : ranks.buffers) {
      if (planned) CHECK_EQ(ranks.Share(r), alone ? granted : "shared by file descriptor, " + granted);
    }
    CHECK_EQ(ranks.Play(0), planned ? 0u : 2u);
    ranks.UntilInPlace(1);
  }
}

// A buffer that lies in several mappings is copied to a replacement, and one within a mapping is used in place.
void SeveralMappings(Processes& here) {
  const bool alone = here.count == 1;
  for (uint64_t block : {50'000, 1000}) {
    Ranks ranks(here, alone ? std::vector<int>{0, 0} : std::vector<int>{0, 1}, block, 64 << 10);
    for (auto& [r, buffer] : ranks.buffers) {
      const std::string rank = std::to_string(r), how = ranks.Share(r);
      const std::string staged = alone
                                     ? "staged: a buffer of rank " + rank + " is put together from several allocations"
                                     : "staged: the input of rank " + rank +
                                           " is not shared, since it is put together from several allocations";
      CHECK_EQ(how == staged, block == 50'000);
      CHECK_EQ(how.find("staged") == 0, block == 50'000);
    }
    for (int round = 0; round < 3; ++round) CHECK_EQ(ranks.Play(round), block == 50'000 ? ranks.buffers.size() : 0u);
  }
}

CASE("not_granted") { PlayIn(1, NotGranted); }

CASE("not_granted_of_two_processes") { PlayIn(2, NotGranted); }

CASE("several_mappings_of_one_process") { PlayIn(1, SeveralMappings); }

CASE("several_mappings_of_two_processes") { PlayIn(2, SeveralMappings); }

}  // namespace
}  // namespace jaxring::test
