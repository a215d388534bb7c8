// Started collectives on the fake GPU: work that XLA's stream has between start and done runs while the collective
// waits for its peer, also in a captured graph.
#include "tests/cuda/host/cuda_host.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

constexpr uint64_t kElements = 1000, kBytes = 4 * kElements;

struct Two {
  explicit Two(Processes& here) : side_streams(here.runtime->side_streams()) {
    const Schedule& schedule = Find("all_reduce direct 1x4 x1");
    const GroupShape shape{"side stream", {0, 0, 0, 0}, {0, 0, 0, 0}, cuda::Protocol::kSimple, 1, 8192, 4};
    group = Join(here, shape);
    plan = PlanOf(here, group, shape, schedule, DType::kInt32, kElements);
    for (int r = 0; r < 4; ++r) {
      for (auto* kind : {&in, &out, &other, &copy})
        kind->push_back(cuda::ThisGpu().memory.Allocate(DeviceOf(r), kBytes));
      Fill(in[r], r, r + 1);
      Fill(other[r], r, 100 + r);
    }
  }
  void Fill(char* to, int rank, int32_t value) {
    const std::vector<int32_t> x(kElements, value);
    cuda::ThisGpu().memory.Copy(DeviceOf(rank), to, x.data(), kBytes);
  }
  int32_t Last(const char* from, int rank) {
    int32_t value;
    cuda::ThisGpu().memory.Copy(DeviceOf(rank), &value, from + kBytes - 4, 4);
    return value;
  }
  void Start(int rank) {
    void* side = side_streams.Fork(rank, DeviceOf(rank), StreamOf(rank));
    CHECK(side != StreamOf(rank));
    CHECK(plan->Launch(rank, in[rank], out[rank], kBytes, kBytes, side).ok());
    side_streams.Started(rank, out[rank]);
  }
  // The step between start and done.
  void Compute(int rank) { cuda::ThisGpu().streams.CopyAsync(copy[rank], other[rank], kBytes, StreamOf(rank)); }
  void Await(int rank) { cuda::ThisGpu().streams.Synchronize(DeviceOf(rank), StreamOf(rank)); }

  cuda::SideStreams& side_streams;
  std::shared_ptr<cuda::Communicator> group;
  std::shared_ptr<cuda::LaunchPlan> plan;
  std::vector<char*> in, out, other, copy;
};

void WhileThePeersAreAway(Processes& here) {
  Two two(here);
  for (int r : {0, 1, 2}) {
    two.Start(r);
    two.Compute(r);
  }
  for (int r : {0, 1, 2}) {
    two.Await(r);  // the computing stream, which does not wait for the collective
    CHECK_EQ(two.Last(two.copy[r], r), 100 + r);
    CHECK_EQ(two.Last(two.out[r], r), 0);
  }
  CHECK_EQ(two.side_streams.open(), 3u);
  CHECK_EQ(here.runtime->Counters()["in_flight"], 3u);
  two.Start(3);
  for (int r = 0; r < 4; ++r) {
    CHECK(two.side_streams.Join(r, two.out[r], StreamOf(r)));
    // After the join the collective's result is there.
    cuda::ThisGpu().streams.CopyAsync(two.copy[r], two.out[r], kBytes, StreamOf(r));
    two.Await(r);
    CHECK_EQ(two.Last(two.copy[r], r), 10);
    CHECK(!two.side_streams.Join(r, two.out[r], StreamOf(r)));
  }
  CHECK_EQ(two.side_streams.open(), 0u);
}

// The start reads the result of earlier work on the stream, and not of later work.
void InOrder(Processes& here) {
  Two two(here);
  for (int r = 0; r < 4; ++r) {
    cuda::ThisGpu().streams.CopyAsync(two.in[r], two.other[r], kBytes, StreamOf(r));
    two.Start(r);
    CHECK(two.side_streams.Join(r, two.out[r], StreamOf(r)));
    cuda::ThisGpu().streams.CopyAsync(two.in[r], two.copy[r], kBytes, StreamOf(r));
  }
  for (int r = 0; r < 4; ++r) {
    two.Await(r);
    CHECK_EQ(two.Last(two.out[r], r), 406);
    CHECK_EQ(two.Last(two.in[r], r), 0);
  }
}

void AsAGraph(Processes& here) {
  Two two(here);
  std::vector<std::function<void()>> graphs;
  for (int r = 0; r < 4; ++r) {
    // This first start makes the streams and events, which a captured one may not.
    two.Start(r);
    CHECK(two.side_streams.Join(r, two.out[r], StreamOf(r)));
  }
  for (int r = 0; r < 4; ++r) two.Await(r);
  for (int r = 0; r < 4; ++r) {
    graphs.push_back(Captured(r, [&, r] {
      two.Start(r);
      two.Compute(r);
      CHECK(two.side_streams.Join(r, two.out[r], StreamOf(r)));
      // The sum is the next replay's input.
      cuda::ThisGpu().streams.CopyAsync(two.in[r], two.out[r], kBytes, StreamOf(r));
    }));
  }
  int32_t expected = 10;
  for (int round = 0; round < 12; ++round) {
    for (auto& graph : graphs) graph();
    for (int r = 0; r < 4; ++r) {
      two.Await(r);
      CHECK_EQ(two.Last(two.in[r], r), expected);
      CHECK_EQ(two.Last(two.copy[r], r), 100 + r);
    }
    expected *= 4;
  }
}

// XLA captures each call by itself, and a start alone would leave its side stream in the capture.
void AStartAloneIsNoGraph(Processes& here) {
  Two two(here);
  bool refused = false;
  try {
    Captured(0, [&] { two.Start(0); });
  } catch (const cuda::GpuError& error) {
    refused = std::string(error.what()).find("did not come back") != std::string::npos;
  }
  CHECK(refused);
}

CASE("while the peers are away") { CHECK_EQ(RunProcesses(1, WhileThePeersAreAway)[0], 0); }

CASE("in order") { CHECK_EQ(RunProcesses(1, InOrder)[0], 0); }

CASE("as a graph") { CHECK_EQ(RunProcesses(1, AsAGraph)[0], 0); }

CASE("a start alone is no graph") { CHECK_EQ(RunProcesses(1, AStartAloneIsNoGraph)[0], 0); }

}  // namespace
}  // namespace jaxring::test
