// Bounds on the cost of a small all-reduce, in counts that do not depend on the machine: allocations, wake-ups of other
// threads and processes, operations that left their launching thread. A change that lowers a count lowers its bound.
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

// Replacing the allocator makes GCC 12 warn of uninitialised strings, and of mismatched functions where it inlines only
// one of the two replacements.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

#include "tests/support/cases.h"
#include "tests/support/job.h"

namespace {
thread_local bool counting = false;
thread_local uint64_t allocations = 0;
}  // namespace

void* operator new(size_t size) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
// std::stable_sort allocates with this operator and frees with the delete below.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (counting) ++allocations;
  return std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace jaxring::test {
namespace {

constexpr int kWarmUp = 20, kRounds = 300;
constexpr uint64_t kElements = 256;
// Allocations of an operation on the threads that bring its ranks: for 4 ranks of one process, and for one rank in each
// of 4 processes.
constexpr uint64_t kMostInProcess = 21, kMostBetween = 6;

// Brings the ranks one after another on one thread, in several rounds. Returns the allocations of the last rounds.
uint64_t Rounds(Call& call, const std::vector<int>& ranks, float expected) {
  std::vector<std::vector<float>> in(ranks.size(), std::vector<float>(kElements, 1.0f)), out = in;
  std::atomic<size_t> ended{0};
  std::atomic<bool> ok{true};
  allocations = 0;
  for (int round = 0; round < kWarmUp + kRounds; ++round) {
    ended = 0;
    if (round == kWarmUp) allocations = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      counting = true;
      call.Arrive(ranks[i], round, in[i].data(), out[i].data(), [&ended, &ok](const Status& status) {
        if (!status.ok()) ok = false;
        ++ended;
      });
      counting = false;
    }
    while (ended != ranks.size()) sched_yield();
    CHECK(ok);
    for (const auto& values : out) CHECK(values.front() == expected && values.back() == expected);
  }
  return allocations;
}

Settings SmallSum(Protocol protocol) {
  Settings settings;
  settings.dtype = DType::kF32;
  settings.block = kElements;
  settings.protocol = protocol;
  settings.tile = 1024;
  settings.piece_bytes = 4096;
  return settings;
}

CASE("in one process") {
  Job job(1, Wire::kShared, 4096);
  Call call(&job, Find("all_reduce direct 1x4 x1"), SmallSum(Protocol::kMemory));
  const uint64_t wakes = Doorbell::wakes();
  const uint64_t allocated = Rounds(call, {0, 1, 2, 3}, 4.0f);
  auto& counters = job.engine(0).counters();
  // The first one waits for its plan.
  CHECK(counters.inline_operations + 1 >= counters.operations);
  CHECK(Doorbell::wakes() - wakes <= 1);
  std::cerr << "in one process, 4 ranks: " << double(allocated) / kRounds << " allocations\n";
  CHECK(allocated <= kMostInProcess * kRounds);
}

// A thread stands for each process. The threads wait for each other in the handler without a limit.
CASE("between processes") {
  const Schedule& schedule = Find("all_reduce oneshot 4x1 x1");
  Job job(4, Wire::kShared, 4096, 1, 60'000'000);
  Call call(&job, schedule, SmallSum(Protocol::kLL));
  const uint64_t wakes = Doorbell::wakes();
  std::vector<std::thread> processes;
  std::vector<uint64_t> allocated(4);
  for (int rank = 0; rank < 4; ++rank) {
    processes.emplace_back([&, rank] { allocated[rank] = Rounds(call, {rank}, 4.0f); });
  }
  for (auto& process : processes) process.join();
  for (int p = 0; p < 4; ++p) {
    auto& counters = job.engine(p).counters();
    CHECK(counters.inline_operations + 1 >= counters.operations);
    std::cerr << "between 4 processes: " << double(allocated[p]) / kRounds << " allocations\n";
    CHECK(allocated[p] <= kMostBetween * kRounds);
  }
  // The first operation of each waits for its plan and goes to the workers, whom four messages may wake.
  std::cerr << "between 4 processes: " << Doorbell::wakes() - wakes << " wake-ups in all\n";
  CHECK(Doorbell::wakes() - wakes <= 4 * 5);
}

// If there are more processes than CPUs, launching threads execute larger operations, too.
CASE("more processes than CPUs") {
  cpu_set_t allowed, one;
  CPU_ZERO(&one);
  CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  CPU_SET(sched_getcpu(), &one);
  CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
  Job job(4, Wire::kShared, 4096, 1, 60'000'000);
  Settings settings = SmallSum(Protocol::kSimple);
  settings.block = 64 << 10;
  Call call(&job, Find("all_reduce direct 4x1 x1"), settings);
  std::vector<std::thread> processes;
  for (int rank = 0; rank < 4; ++rank) {
    processes.emplace_back([&, rank] {
      std::vector<float> in(call.schedule().in_blocks * settings.block, 1.0f), out = in;
      // The engine counts processes twenty times a second. The others wait for the last one.
      for (int round = 0; round < 100; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(rank == 3 ? 5 : 1));
        Ends ends(call.Describe());
        call.Arrive(rank, round, in.data(), out.data(), ends.Expect());
        ends.WaitOk();
        CHECK(out.front() == 4.0f && out.back() == 4.0f);
      }
    });
  }
  for (auto& process : processes) process.join();
  CHECK(sched_setaffinity(0, sizeof allowed, &allowed) == 0);
  for (int p = 0; p < 3; ++p)
    CHECK(2 * job.engine(p).counters().inline_operations > job.engine(p).counters().operations);
}

}  // namespace
}  // namespace jaxring::test
