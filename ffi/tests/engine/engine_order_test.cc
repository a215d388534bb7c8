// Many operations in flight: in a different order in each process, back to back, and with interleaved runs.
#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/schedules.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

Settings Sized(Protocol protocol, uint64_t block) {
  Settings settings;
  settings.protocol = protocol;
  settings.block = block;
  return settings;
}

// One execution of one call with its data.
struct Execution {
  Execution(Job* job, const Schedule& schedule, const Settings& settings, uint64_t seed)
      : call(job, schedule, settings), inputs(Inputs(call, seed)), outputs(Outputs(call)), ends(call.Describe()) {
    for (int rank = 0; rank < schedule.ranks(); ++rank) done.push_back(ends.Expect());
  }
  void Arrive(int rank) { call.Arrive(rank, 7, inputs[rank].data(), outputs[rank].data(), std::move(done[rank])); }
  void Check() {
    ends.WaitOk();
    Reference reference(call, inputs);
    for (int rank = 0; rank < call.schedule().ranks(); ++rank) reference.Check(rank, outputs[rank]);
  }
  Call call;
  std::vector<Buffer> inputs, outputs;
  std::vector<Completion> done;
  Ends ends;
};

constexpr size_t kInFlight = 64;

std::vector<std::unique_ptr<Execution>> Executions(Job* job, uint64_t seed) {
  static const char* const names[] = {"all_gather direct 2x2 x1",          "all_reduce ring 2x2 x3",
                                      "all_to_all direct 2x2 x1",          "all_reduce hier_ring 2x2 x1",
                                      "reduce_scatter direct 2x2 x3",      "all_reduce tree 2x2 x1",
                                      "all_reduce halving_doubling 2x2 x1"};
  std::vector<std::unique_ptr<Execution>> executions;
  for (size_t i = 0; i < kInFlight; ++i) {
    const Protocol protocol = i % 3 == 0 ? Protocol::kLL : Protocol::kSimple;
    const Schedule& schedule = Find(names[i % std::size(names)]);
    executions.push_back(std::make_unique<Execution>(job, schedule, Sized(protocol, 100 + 31 * i % 400), seed + i));
  }
  return executions;
}

// Process 0 begins all operations before process 1 begins the last one. Messages of process 0's first operations fill
// the rings, so the last one can only end if they are moved to the unexpected-message queue.
void CheckLastFirst(Wire wire) {
  Job job(2, wire);
  auto executions = Executions(&job, 1);
  for (auto& execution : executions) {
    for (int rank : {0, 1}) execution->Arrive(rank);
  }
  for (size_t i = kInFlight; i-- > 0;) {
    for (int rank : {3, 2}) executions[i]->Arrive(rank);
    if (i % 8 == 7) executions[i]->Check();
  }
  for (auto& execution : executions) execution->Check();
  CHECK(job.engine(1).counters().spills > 0);
  for (int process : {0, 1}) CHECK_EQ(job.engine(process).network().unexpected().bytes(), 0u);
}

// Each rank has an order of its own, and a thread but in virtual time.
void CheckShuffled(Wire wire, uint64_t seed) {
  Job job(2, wire);
  auto executions = Executions(&job, seed);
  std::vector<std::thread> threads;
  auto arrive = [&](int rank) {
    std::vector<Execution*> order;
    for (auto& execution : executions) order.push_back(execution.get());
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(seed * 4 + rank)));
    for (Execution* execution : order) execution->Arrive(rank);
  };
  for (int rank = 0; rank < 4; ++rank) wire == Wire::kFake ? arrive(rank) : void(threads.emplace_back(arrive, rank));
  for (std::thread& thread : threads) thread.join();
  for (auto& execution : executions) execution->Check();
  for (int process : {0, 1}) CHECK_EQ(job.engine(process).network().unexpected().bytes(), 0u);
}

// A loop: every rank waits for its own part before it goes on.
void CheckBackToBack(Wire wire, const char* name, Protocol protocol, int times) {
  const Schedule& schedule = Find(name);
  Job job(schedule.processes(), wire);
  constexpr uint64_t kBlock = 33;
  Call call(&job, schedule, Sized(protocol, kBlock));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int32_t> data(kBlock);
      for (int time = 0; time < times; ++time) {
        for (uint64_t i = 0; i < kBlock; ++i) data[i] = static_cast<int32_t>(i) * 1000 + time * (rank + 1);
        Ends ends(call.Describe());
        call.Arrive(rank, time / 10, data.data(), data.data(), ends.Expect());
        ends.WaitOk();
        const int n = schedule.ranks();
        for (uint64_t i = 0; i < kBlock; ++i) {
          CHECK_EQ(data[i], static_cast<int32_t>(i) * 1000 * n + time * n * (n + 1) / 2);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(job.engine(0).counters().operations.load(), static_cast<uint64_t>(times));
}

// Runs overlap, and each executes the site often. Ranks of one process are matched by run, in any interleaving.
// Processes are matched by the order in which runs begin, so that order must be the same in all processes.
void CheckRuns(const char* name, Protocol protocol, bool shuffled) {
  constexpr int kRuns = 3, kTimes = 60;
  const Schedule& schedule = Find(name);
  Job job(schedule.processes(), Wire::kShared);
  constexpr uint64_t kBlock = 50;
  Call call(&job, schedule, Sized(protocol, kBlock));
  Ends ends(call.Describe());
  std::mutex mutex;
  std::vector<std::thread> threads;
  std::vector<std::vector<int32_t>> data(schedule.ranks() * kRuns * kTimes);
  auto slot = [&](int rank, int run, int time) -> std::vector<int32_t>& {
    return data[(rank * kRuns + run) * kTimes + time];
  };
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int> order;
      for (int i = 0; i < kRuns * kTimes; ++i) order.push_back(i % kRuns);
      std::shuffle(order.begin(), order.end(), std::mt19937(shuffled ? rank : 0));
      std::vector<int> times(kRuns);
      for (int run : order) {
        const int time = times[run]++;
        std::vector<int32_t>& values = slot(rank, run, time);
        values.assign(kBlock, run * 1000 + time + (rank << 20));
        Completion done;
        {
          std::lock_guard lock(mutex);
          done = ends.Expect();
        }
        call.Arrive(rank, run, values.data(), values.data(), std::move(done));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ends.WaitOk();
  const int n = schedule.ranks();
  for (int rank = 0; rank < n; ++rank) {
    for (int run = 0; run < kRuns; ++run) {
      for (int time = 0; time < kTimes; ++time) {
        for (int32_t value : slot(rank, run, time)) {
          CHECK_EQ(value, n * (run * 1000 + time) + ((n * (n - 1) / 2) << 20));
        }
      }
    }
  }
}

CASE("the last one first") {
  for (Wire wire : {Wire::kShared, Wire::kTcp, Wire::kFake}) CheckLastFirst(wire);
}

CASE("shuffled") {
  for (Wire wire : {Wire::kShared, Wire::kTcp, Wire::kFake}) {
    for (uint64_t seed : {1, 2}) CheckShuffled(wire, seed);
  }
}

CASE("back to back") {
  CheckBackToBack(Wire::kShared, "all_reduce ring 2x2 x1", Protocol::kLL, 2000);
  CheckBackToBack(Wire::kTcp, "all_reduce ring 2x2 x1", Protocol::kLL, 500);
  CheckBackToBack(Wire::kShared, "all_reduce direct 1x4 x1", Protocol::kMemory, 2000);
}

CASE("executions are told apart by their numbers") {
  CheckRuns("all_reduce direct 1x4 x1", Protocol::kMemory, true);
  CheckRuns("all_reduce ring 1x4 x1", Protocol::kSimple, true);
  CheckRuns("all_reduce hier_ring 2x2 x1", Protocol::kSimple, false);
}

}  // namespace
}  // namespace jaxring::test
