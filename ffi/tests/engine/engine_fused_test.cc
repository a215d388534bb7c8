// Fused calls of several collectives: an execution begins, ends and fails as one, in all processes.
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/fused_sites.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

constexpr int kCollectives = 5, kRounds = 20;
const std::vector<int> kAll = {0, 1, 2, 3};

// Independent ranks, as devices are: each arrives at the next execution as soon as its last one has ended.
void CheckLoop(const char* name, Protocol protocol, uint64_t block) {
  const Schedule& schedule = Find(name);
  Job job(schedule.processes(), Wire::kShared, 4096);
  FusedSites call(&job, schedule, Sized(block, 60, protocol), kCollectives);
  std::vector<std::thread> threads;
  for (int rank : kAll) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        FusedSites::Data data = call.Values(rank, round);
        Ends ends(std::string(name) + ", rank " + std::to_string(rank));
        call.Arrive(rank, round, data, ends.Expect());
        ends.WaitOk();
        call.Check(data, round);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int process = 0; process < schedule.processes(); ++process) {
    CHECK_EQ(job.engine(process).counters().operations, uint64_t{kCollectives} * kRounds);
    CHECK_EQ(job.engine(process).counters().sites, 1);
  }
}

// One collective of the call gets no plan in one process. All processes fail at once, whether the other collectives
// were planned before or after, and the next execution requests a plan for that collective only.
void CheckRejection(int rejected) {
  Job job(2, Wire::kShared);
  FusedSites call(&job, Find("all_reduce ring 2x2 x1"), Sized(100), kCollectives);
  std::atomic<bool> none{true};
  std::atomic<int> asked{0};
  for (int i = 0; i < kCollectives; ++i) {
    call.Answer(i, [&, i](int process, const PlanRequest& request) {
      ++asked;
      request.Identify(call.key(i), Half::kBoth, process);
      if (process == 1 && i == rejected && none) {
        return request.Reject(Status::Error(Code::kResourceExhausted, "no memory for a link"));
      }
      request.Resolve(call.MakeOne(i, process, request));
    });
  }
  for (int run = 0; run < 3; ++run) {
    for (const Status& status : call.Run(run, kAll)) {
      CHECK(status.code == Code::kResourceExhausted && Says(status, "no memory for a link"));
    }
  }
  none = false;
  for (int run = 3; run < 6; ++run) {
    for (const Status& status : call.Run(run, kAll)) CHECK(status.ok() || Says(status, "no failure"));
  }
  // One request for each collective in both processes, and four for the one that was refused three times.
  CHECK_EQ(asked, 2 * kCollectives + 3);
}

// A rank does not arrive: the deadline of the call fails all of its collectives, in the other process, too.
CASE("a fused call's deadline") {
  Job job(2, Wire::kShared);
  FusedSites call(&job, Find("all_reduce ring 2x2 x1"), Sized(100), kCollectives, 1);
  for (const Status& status : call.Run(0, kAll)) CHECK(status.ok() || Says(status, "no failure"));
  for (const Status& status : call.Run(1, {0, 1, 2})) {
    CHECK(status.code == Code::kDeadlineExceeded && Says(status, "only ranks 2 of this process came"));
  }
  Ends late("a rank that comes late");
  FusedSites::Data data = call.Values(3, 1);
  call.Arrive(3, 1, data, late.Expect());
  CHECK(late.Wait()[0].code == Code::kDeadlineExceeded);
  for (const Status& status : call.Run(2, kAll)) CHECK(status.ok() || Says(status, "no failure"));
}

// Buffers that do not fit one of the plans.
CASE("fused calls of many sizes") {
  Job job(1, Wire::kShared);
  FusedSites call(&job, Find("all_reduce direct 1x4 x1"), Sized(100, 60, Protocol::kMemory), kCollectives);
  call.Answer(3, [&](int process, const PlanRequest& request) {
    auto plan = call.MakeOne(3, process, request);
    plan->shape.block_elements = 99;
    plan->Seal();
    request.Resolve(plan);
  });
  for (const Status& status : call.Run(0, kAll)) {
    CHECK(status.code == Code::kInternal && Says(status, "buffers of 400 and 400 bytes do not fit the plan"));
  }
}

// A collective that fails while it runs fails the call, once the others have ended.
CASE("a fused call fails") {
  Job job(2, Wire::kShared);
  FusedSites call(&job, Find("all_reduce ring 2x2 x1"), Sized(100, 2), kCollectives);
  for (const Status& status : call.Run(0, kAll)) CHECK(status.ok() || Says(status, "no failure"));
  for (const Status& status : call.Run(1, {0, 1})) {
    CHECK(status.code == Code::kDeadlineExceeded &&
          Says(status, "rank 3 (process 1) is alive, and between operations"));
  }
}

CASE("fused calls in a loop") {
  CheckLoop("all_reduce direct 1x4 x1", Protocol::kMemory, 100);
  CheckLoop("all_reduce direct 1x4 x1", Protocol::kMemory, 100000);
  CheckLoop("all_reduce direct 2x2 x1", Protocol::kSimple, 1000);
  CheckLoop("all_reduce direct 4x1 x1", Protocol::kLL, 500);
}

CASE("one of a fused call's plans is refused") {
  for (int rejected : {0, 2, kCollectives - 1}) CheckRejection(rejected);
}

}  // namespace
}  // namespace jaxring::test
