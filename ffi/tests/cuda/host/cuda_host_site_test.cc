// Call sites of the CUDA engine on the fake GPU: what the first call of a device waits for, and what it does not hold.
#include "tests/cuda/host/cuda_host_play.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

constexpr uint64_t kElements = 500, kBytes = 4 * kElements;

// Two ranks of one process, each on a GPU of its own, and a planning thread that gives every site the same plan.
struct TwoRanks {
  explicit TwoRanks(Processes& here) : runtime(*here.runtime), schedule(Find("all_reduce direct 1x2 x1")) {
    for (int d = 0; d < 2; ++d) runtime.Prepare(d);
    const GroupShape shape = ShapeOf(schedule, {0, 0}, {0, 0}, cuda::Protocol::kSimple);
    group = Join(here, shape);
    plan = PlanOf(here, group, shape, schedule, DType::kInt32, kElements,
                  [](cuda::LaunchPlanSpec& spec) { spec.timeout_s = kSlow ? 60 : 5; });
    for (uint32_t r = 0; r < 2; ++r) {
      buffers.push_back(std::make_unique<Buffers>(static_cast<int>(r), schedule, kElements));
      buffers[r]->Fill(0);
      partitions.push_back(cuda::ThisGpu().Allocate(DeviceOf(static_cast<int>(r)), 128));
      cuda::ThisGpu().Copy(DeviceOf(static_cast<int>(r)), partitions[r], &r, sizeof r);
    }
    planner = std::thread([this] {
      while (!stop) {
        if (auto request = runtime.NextRequest()) {
          request->site->Resolve(request->group, plan);
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    });
  }
  ~TwoRanks() { StopPlanning(); }
  void StopPlanning() {
    stop = true;
    if (planner.joinable()) planner.join();
  }
  std::shared_ptr<cuda::Site> NewSite() {
    return std::make_shared<cuda::Site>(&runtime, cuda::SiteSpec{"a site", {0, 1}, 2, 60, 0});
  }
  Status Run(cuda::Site& site, int rank) {
    Buffers& own = *buffers[rank];
    return site.Run(rank, partitions[rank], own.in, own.out, kBytes, kBytes, StreamOf(rank));
  }

  cuda::Runtime& runtime;
  const Schedule& schedule;
  std::shared_ptr<cuda::Communicator> group;
  std::shared_ptr<cuda::LaunchPlan> plan;
  std::vector<std::unique_ptr<Buffers>> buffers;
  std::vector<char*> partitions;
  std::atomic<bool> stop{false};
  std::thread planner;
};

// Rank 0's first call of the second site reads its partition id behind the kernel of the first, which waits for rank 1.
// Rank 1 can launch all the same.
void ReadsBehindAKernel(Processes& here) {
  TwoRanks ranks(here);
  auto first = ranks.NewSite(), second = ranks.NewSite();
  std::thread ahead([&] {
    CHECK(ranks.Run(*first, 0).ok());
    CHECK(ranks.Run(*second, 0).ok());
  });
  while (cuda::fake::RunningKernels() == 0 || cuda::fake::Readers() == 0) std::this_thread::yield();
  CHECK(ranks.Run(*first, 1).ok());
  CHECK(ranks.Run(*second, 1).ok());
  ahead.join();
  for (int r = 0; r < 2; ++r) {
    cuda::ThisGpu().Synchronize(DeviceOf(r), StreamOf(r));
    ranks.buffers[r]->Check(0);
  }
}

// A device is prepared while groups are set up: both wait for the service's thread.
void PreparesWhileGroupsAreMade(Processes& here) {
  TwoRanks ranks(here);
  std::atomic<bool> made{false};
  std::atomic<int> prepared{0};
  std::thread preparing([&] {
    for (; !made; ++prepared) ranks.runtime.Prepare(0);
  });
  cuda::CommunicatorSpec spec = ranks.group->ranks().spec();
  for (int i = 0; i < 30; ++i) {
    for (const int before = prepared; prepared == before;) std::this_thread::yield();
    spec.name = "group " + std::to_string(i);
    ranks.runtime.GetCommunicator(spec);
  }
  made = true;
  preparing.join();
}

// A call whose site has no plan is told why the process runs no more, by the first reason.
void SaysWhyItWasAborted(Processes& here) {
  TwoRanks ranks(here);
  ranks.StopPlanning();
  ranks.runtime.Abort("process 0 called jaxring.abort(): enough", true);
  ranks.runtime.Abort("this process is ending", false);
  const Status planned =
      ranks.plan->Launch(0, ranks.buffers[0]->in, ranks.buffers[0]->out, kBytes, kBytes, StreamOf(0));
  CHECK(planned.message.find("process 0 called jaxring.abort(): enough") != std::string::npos);
  const Status status = ranks.Run(*ranks.NewSite(), 0);
  CHECK(status.code == Code::kAborted);
  CHECK_EQ(status.message, "jaxring: process 0 called jaxring.abort(): enough");
  Captured(0, [&] { CHECK_EQ(ranks.Run(*ranks.NewSite(), 0).message, status.message); });
}

CASE("reads_behind_a_kernel") { PlayIn(1, ReadsBehindAKernel); }
CASE("prepares_while_groups_are_made") { PlayIn(1, PreparesWhileGroupsAreMade); }
CASE("says_why_it_was_aborted") { PlayIn(1, SaysWhyItWasAborted); }

}  // namespace
}  // namespace jaxring::test
