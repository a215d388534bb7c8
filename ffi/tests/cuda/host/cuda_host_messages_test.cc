// send, recv and ragged_all_to_all as graphs on the fake GPU: counters, offsets and sizes are in device memory, so a
// graph that was captured once can be replayed and moves other amounts.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/host/cuda_host.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

constexpr int kRanks = 4, kReplays = kSlow ? 4 : 30;

GroupShape Shape(const std::string& name, std::vector<int> process, std::vector<int> domain, uint32_t slots,
                 uint64_t slot_bytes) {
  return {name, std::move(process), std::move(domain), cuda::Protocol::kSimple, 1, slot_bytes, slots};
}

template <class T>
void Put(int rank, void* to, const std::vector<T>& items) {
  cuda::ThisGpu().memory.Copy(DeviceOf(rank), to, items.data(), items.size() * sizeof(T));
}
template <class T>
std::vector<T> Get(int rank, const void* from, size_t count) {
  std::vector<T> items(count);
  cuda::ThisGpu().memory.Copy(DeviceOf(rank), items.data(), from, count * sizeof(T));
  return items;
}
template <class T>
T* New(int rank, size_t count) {
  return reinterpret_cast<T*>(cuda::ThisGpu().memory.Allocate(DeviceOf(rank), count * sizeof(T)));
}

void Expect(const Status& status) {
  if (!status.ok()) std::cerr << status.message << std::endl;
  CHECK(status.ok());
}

// Two sends of several slots each, then two receives. No rank sends to rank 0, and the last rank sends to none. `check`
// stands for the messages' shape.
void SendAndReceive(Processes& here, const std::vector<int>& process, const std::vector<int>& domain,
                    uint64_t check = 12345) {
  constexpr uint64_t kElements = 2000;
  const Schedule& both = Find("permute direct 4x1 x1");
  const GroupShape data = Shape("data", process, domain, 16, 4096),
                   headers = Shape("headers", process, domain, 64, 512);
  auto group = Join(here, data), header_ring = Join(here, headers);
  Connect(here, *group, data, both);
  Connect(here, *header_ring, headers, both);
  const auto plan = [&](const char* name, Half half, bool last) {
    auto made = PlanOf(here, group, data, Find(name), DType::kInt32, kElements, [&](cuda::LaunchPlanSpec& spec) {
      spec.message.half = half;
      spec.message.header_ring = header_ring;
      spec.message.check = check;
      (half == Half::kSend ? spec.shape.out_blocks : spec.shape.in_blocks) = 0;
      spec.what += last ? " again" : "";
    });
    here.runtime->Watch(made);
    return made;
  };
  auto send = plan("permute send 4x1", Half::kSend, false), recv = plan("permute recv 4x1", Half::kRecv, false);
  std::map<int, std::array<int32_t*, 4>> buffers;
  std::vector<std::function<void()>> graphs;
  for (int r = 0; r < kRanks; ++r) {
    if (!group->ranks().local(r)) continue;
    auto& b = buffers[r];
    for (int32_t*& buffer : b) buffer = New<int32_t>(r, kElements);
    graphs.push_back(Captured(r, [&, r] {
      for (int i : {0, 1}) Expect(send->Launch(r, b[i], nullptr, 4 * kElements, 0, StreamOf(r)));
      for (int i : {2, 3}) Expect(recv->Launch(r, nullptr, b[i], 0, 4 * kElements, StreamOf(r)));
    }));
  }
  for (int round = 0; round < kReplays; ++round) {
    for (auto& [r, b] : buffers) {
      for (int i : {0, 1}) {
        std::vector<int32_t> x(kElements);
        std::iota(x.begin(), x.end(), round * 1000 + r * 10 + i);
        Put(r, b[i], x);
        Put(r, b[i + 2], std::vector<int32_t>(kElements, -1));
      }
    }
    for (auto& graph : graphs) graph();
    for (auto& [r, b] : buffers) {
      cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
      for (int i : {0, 1}) {
        const auto y = Get<int32_t>(r, b[i + 2], kElements);
        for (uint64_t e = 0; e < kElements; ++e) {
          CHECK_EQ(y[e], r == 0 ? 0 : round * 1000 + (r - 1) * 10 + i + static_cast<int32_t>(e));
        }
      }
    }
  }
}

// Rows that rank `from` sends to `to` in a round; for some rounds and pairs there are none.
int Rows(int from, int to, int round) { return (from * 7 + to * 3 + round * 5) % 40 * (round % 4 != 3); }

void Ragged(Processes& here, const std::vector<int>& process, const std::vector<int>& domain) {
  static constexpr int kRow = 3, kRows = 200;
  const Schedule& schedule = Find("all_to_all direct 4x1 x1");
  const GroupShape shape = Shape("ragged", process, domain, 4, 512);
  auto group = Join(here, shape);
  Connect(here, *group, shape, schedule);
  auto plan = PlanOf(here, group, shape, schedule, DType::kInt32, kRow * kRows,
                     [](cuda::LaunchPlanSpec& spec) { spec.shape.ragged_row = kRow; });
  here.runtime->Watch(plan);
  struct Buffers {
    int32_t *in, *out;
    int64_t* wide;    // input offsets
    int32_t* narrow;  // the other vectors
  };
  std::map<int, Buffers> buffers;
  std::vector<std::function<void()>> graphs;
  for (int r = 0; r < kRanks; ++r) {
    if (!group->ranks().local(r)) continue;
    Buffers& b = buffers[r] = {New<int32_t>(r, kRow * kRows), New<int32_t>(r, kRow * kRows), New<int64_t>(r, kRanks),
                               New<int32_t>(r, 4 * kRanks)};
    graphs.push_back(Captured(r, [&, r] {
      const int32_t* n = b.narrow;
      const cuda::RaggedVectors vectors{{b.wide, n, n + kRanks, n + 2 * kRanks, n + 3 * kRanks},
                                        1u << cuda::RaggedVectors::kInOffset};
      Expect(plan->Launch(r, b.in, b.out, 4 * kRow * kRows, 4 * kRow * kRows, StreamOf(r), &vectors));
    }));
  }
  for (int round = 0; round < kReplays; ++round) {
    std::map<int, std::vector<int32_t>> expected;
    for (auto& [r, b] : buffers) {
      std::vector<int32_t> x(kRow * kRows), numbers(4 * kRanks);
      std::vector<int64_t> offsets(kRanks);
      for (size_t i = 0; i < x.size(); ++i) x[i] = r * 100000 + static_cast<int32_t>(i);
      auto& want = expected[r];
      want.assign(kRow * kRows, -round);
      Put(r, b.in, x);
      Put(r, b.out, want);
      for (int p = 0, from = 1, to = 2; p < kRanks; ++p) {
        const int goes = Rows(r, p, round), comes = Rows(p, r, round);
        offsets[p] = from;
        numbers[p] = goes;
        numbers[kRanks + p] = to;
        numbers[2 * kRanks + p] = numbers[3 * kRanks + p] = comes;
        int theirs = 1;  // where it lies at the sender
        for (int q = 0; q < r; ++q) theirs += Rows(p, q, round) + 1;
        for (int i = 0; i < kRow * comes; ++i) want[to * kRow + i] = p * 100000 + theirs * kRow + i;
        from += goes + 1;
        to += comes;
      }
      Put(r, b.wide, offsets);
      Put(r, b.narrow, numbers);
    }
    for (auto& graph : graphs) graph();
    for (auto& [r, b] : buffers) {
      cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
      CHECK(Get<int32_t>(r, b.out, kRow * kRows) == expected[r]);
    }
  }
}

void CheckOk(int processes, const std::function<void(Processes&)>& body) {
  for (int status : RunProcesses(processes, body)) CHECK_EQ(status, 0);
}

void CheckLayout(const std::vector<int>& process, const std::vector<int>& domain) {
  const bool network = domain.back() != 0, rdma = !VerbsDevices().empty();
  if (rdma && !network) return;  // no message would use RDMA
  CheckOk(process.back() + 1, [&](Processes& here) {
    SendAndReceive(here, process, domain);
    Ragged(here, process, domain);
    // All use the Simple protocol, so over RDMA no CPU touches their bytes.
    auto counters = here.runtime->Counters();
    CHECK_EQ(counters["carried_messages"] > 0, network);
    CHECK_EQ(counters["gpu_direct_messages"], rdma ? counters["carried_messages"] : 0u);
  });
}

CASE("one process") { CheckLayout({0, 0, 0, 0}, {0, 0, 0, 0}); }

CASE("one domain in two processes") { CheckLayout({0, 0, 1, 1}, {0, 0, 0, 0}); }

CASE("a process that fails says what its kernels have found") {
  std::FILE* said = std::tmpfile();
  const std::vector<int> ends = RunProcesses(2, [&](Processes& here) {
    CHECK(dup2(fileno(said), STDERR_FILENO) >= 0);
    SendAndReceive(here, {0, 0, 1, 1}, {0, 0, 0, 0}, here.own);
  });
  CHECK(ends != std::vector<int>(2, 0));
  std::string text(1 << 16, '\0');
  std::rewind(said);
  text.resize(std::fread(text.data(), 1, text.size(), said));
  std::fclose(said);
  if (text.find("rank 2 (process 1) expects another shape or dtype than rank 1 (process 0)") == std::string::npos) {
    Fail(__FILE__, __LINE__, text.c_str());
  }
}

// Both ends of a connection of one lane within this process, of which the proxy carries the messages.
std::array<cuda::Connection, 2> LaneWithin(Processes& here) {
  std::array<cuda::Connection, 2> ends;
  here.runtime->Prepare(0);
  for (int r : {0, 1}) {
    cuda::ProxySpec spec;
    spec.name = 7;
    spec.src = r;
    spec.dst = 1 - r;
    spec.process = cuda::ProxySpec::kHere;
    spec.slots = 8;
    spec.slot_bytes = 512;
    ends[r] = here.runtime->proxy().Connect(spec, nullptr).at(0);
  }
  return ends;
}

// Where the proxy has nothing to carry, no thread sleeps on the doorbell, and so messages cost their senders no system
// call.
void NobodySleeps(Processes& here) {
  for (int turn = 0; turn < 20; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(!here.engine->network().doorbell().Wake(1));
  }
}

CASE("a proxy without connections costs nobody a wake-up") { CheckOk(1, NobodySleeps); }

// The proxy sleeps on the doorbell, for moments, as a worker of the CPU engine may at the same time.
void RingForAWorker(Processes& here) {
  constexpr auto kLong = std::chrono::seconds(100);
  LaneWithin(here);
  Doorbell& doorbell = here.engine->network().doorbell();
  for (int turn = 0; turn < 500; ++turn) {
    const auto begun = std::chrono::steady_clock::now();
    std::atomic<bool> looked{false};
    std::thread worker([&] {
      const uint32_t seen = doorbell.Value();
      looked = true;
      doorbell.Wait(seen, std::chrono::microseconds(kLong).count());
    });
    while (!looked) std::this_thread::yield();
    // Most times both sleep by now, the one or the other of them for longer.
    std::this_thread::sleep_for(std::chrono::microseconds(turn % 150));
    doorbell.Notify();
    worker.join();
    CHECK(std::chrono::steady_clock::now() - begun < kLong);
  }
}

// A source whose events a thread of the CPU engine, which has polled, has left disabled.
class DisabledSource final : public BusyPollers::Source {
 public:
  void EnableEvents() override { enabled = true; }
  std::atomic<bool> enabled{false};
};

// The proxy reads connections by their events, also while it has messages to carry at each look and never sleeps.
void EventsForABusyProxy(Processes& here) {
  const auto ends = LaneWithin(here);
  // As a kernel that never waits for room.
  for (int slot = 0; slot < 8; ++slot) {
    __atomic_store_n(ends[0].tail + slot, cuda::Stamp::Of(uint64_t{1} << 40, 0), __ATOMIC_RELEASE);
  }
  const auto carried = [&] { return here.runtime->Counters()["carried_messages"]; };
  while (carried() == 0) std::this_thread::yield();
  BusyPollers& pollers = here.engine->network().busy_pollers();
  auto source = std::make_shared<DisabledSource>();
  pollers.Add(source);
  pollers.Begin();
  CHECK(pollers.MayDisableEvents());
  source->enabled = false;
  pollers.End(false);
  for (const uint64_t end = carried() + 10'000; carried() < end && !source->enabled;) std::this_thread::yield();
  CHECK(source->enabled);
}

CASE("a busy proxy has connections' events enabled") { CheckOk(1, EventsForABusyProxy); }

CASE("the proxy passes on a ring that may be for a worker") { CheckOk(1, RingForAWorker); }

CASE("two domains") { CheckLayout({0, 0, 1, 1}, {0, 0, 1, 1}); }

}  // namespace
}  // namespace jaxring::test
