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
      partitions.push_back(cuda::ThisGpu().memory.Allocate(DeviceOf(static_cast<int>(r)), 128));
      cuda::ThisGpu().memory.Copy(DeviceOf(static_cast<int>(r)), partitions[r], &r, sizeof r);
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
    cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
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

// While CUDA makes a group's memory, which may last as long as a kernel that waits for a peer, the planning thread
// takes requests and faults, and calls of other sites run.
void ServesWhileAGroupIsMade(Processes& here) {
  TwoRanks ranks(here);
  auto known = ranks.NewSite();
  for (int r = 0; r < 2; ++r) CHECK(ranks.Run(*known, r).ok());
  cuda::CommunicatorSpec spec = ranks.group->ranks().spec();
  spec.name = "held";
  cuda::fake::HoldAllocations(true);
  std::shared_ptr<cuda::Communicator> made;
  std::thread making([&] { made = ranks.runtime.GetCommunicator(spec); });
  while (cuda::fake::HeldAllocations() == 0) std::this_thread::yield();
  std::atomic<bool> done{false};
  std::thread ends_a_hang([&] {
    for (int i = 0; i < 20'000 && !done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (done) return;
    std::cerr << "somebody waits for the group" << std::endl;
    std::_Exit(1);
  });
  CHECK_EQ(ranks.runtime.TakeFaults().size(), 0u);
  CHECK(!ranks.runtime.NextRequest());
  auto site = ranks.NewSite();  // reads its partitions, and gets its plan from the planning thread
  for (int r = 0; r < 2; ++r) CHECK(ranks.Run(*site, r).ok());
  CHECK(ranks.runtime.GetCommunicator(ranks.group->ranks().spec()) == ranks.group);
  CHECK_EQ(ranks.runtime.Counters()["communicators"], 1u);
  done = true;
  ends_a_hang.join();
  cuda::fake::HoldAllocations(false);
  making.join();
  CHECK(made != nullptr && ranks.runtime.GetCommunicator(spec) == made);
}

// A group whose memory cannot be made is none; it can be asked for again.
void FailsToMakeAGroup(Processes& here) {
  TwoRanks ranks(here);
  cuda::CommunicatorSpec spec = ranks.group->ranks().spec();
  spec.name = "too large";
  spec.stage_bytes = uint64_t{1} << 50;
  for (int i = 0; i < 2; ++i) {
    std::string why;
    try {
      ranks.runtime.GetCommunicator(spec);
    } catch (const cuda::GpuError& error) {
      why = error.what();
    }
    CHECK_EQ(why, "out of memory");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the monitoring thread has looked at all groups
  CHECK_EQ(ranks.runtime.Counters()["communicators"], 1u);
}

// A call that waits for its plan ends when the runtime does, and a group that is made later is broken from the start.
void EndsFirstCalls(Processes& here) {
  TwoRanks ranks(here);
  ranks.StopPlanning();
  auto site = ranks.NewSite();
  Status status;
  std::thread first([&] { status = ranks.Run(*site, 0); });
  while (!ranks.runtime.NextRequest()) std::this_thread::yield();
  ranks.runtime.Abort("enough", true);
  first.join();
  CHECK_EQ(status.message, "jaxring: enough");
  cuda::CommunicatorSpec spec = ranks.group->ranks().spec();
  spec.name = "later";
  std::string why;
  CHECK(ranks.group->health().Broken(&why));
  CHECK(ranks.runtime.GetCommunicator(spec)->health().Broken(&why));
  CHECK_EQ(why, "enough");
}

CASE("reads_behind_a_kernel") { PlayIn(1, ReadsBehindAKernel); }
CASE("prepares_while_groups_are_made") { PlayIn(1, PreparesWhileGroupsAreMade); }
CASE("serves_while_a_group_is_made") { PlayIn(1, ServesWhileAGroupIsMade); }
CASE("fails_to_make_a_group") { PlayIn(1, FailsToMakeAGroup); }
CASE("ends_first_calls") { PlayIn(1, EndsFirstCalls); }
CASE("says_why_it_was_aborted") { PlayIn(1, SaysWhyItWasAborted); }

}  // namespace
}  // namespace jaxring::test
