// Which operations the thread that launches them keeps while it waits for a peer, and which it gives to the workers.
#include <chrono>
#include <thread>

#include "engine/threads/cpu_placement.h"
#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/schedules.h"
#include "tests/support/site4.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

constexpr int kRuns = 4;

// Of so many operations whose peer comes 50 ms later, those that process 0's launching thread has ended itself. On a
// busy machine a thread may come later than the other or wait too long, so that one of them may end otherwise than it
// should.
uint64_t EndedByLaunchingThread(uint64_t block, Wire wire = Wire::kShared) {
  constexpr int64_t kPatienceUs = 30'000'000;
  Job job(2, wire, 64 << 10, 2, kPatienceUs);
  Call call(&job, Find("all_reduce ring 2x1 x1"), Sized(block));
  const auto inputs = Inputs(call, 1);
  auto outputs = Outputs(call);
  uint64_t before = 0;
  for (int run = 0; run <= kRuns; ++run) {
    if (run == 1) before = job.engine(0).counters().inline_operations;  // the first waits for its plan
    Ends ends(call.Describe());
    const Completion first = ends.Expect(), second = ends.Expect();
    std::thread launching([&] { call.Arrive(0, run, inputs[0].data(), outputs[0].data(), first); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    call.Arrive(1, run, inputs[1].data(), outputs[1].data(), second);
    launching.join();
    ends.WaitOk();
  }
  Reference reference(call, inputs);
  for (int rank : {0, 1}) reference.Check(rank, outputs[rank]);
  return job.engine(0).counters().inline_operations - before;
}

CASE("a small operation stays with its thread until the peer comes") {
  CHECK(EndedByLaunchingThread(262'144) >= kRuns / 2);  // 1 MiB
}

CASE("workers wait for the peer of another one, unless the two processes have the CPUs for themselves") {
  // Two processes on one or two CPUs keep operations of any size that go through shared memory.
  const uint64_t kept = EndedByLaunchingThread(262'145);
  CHECK(AllowedCpus() > 2 ? kept <= kRuns / 2 : kept >= kRuns / 2);
}

CASE("without shared memory workers always do") { CHECK(EndedByLaunchingThread(262'145, Wire::kTcp) <= kRuns / 2); }

}  // namespace
}  // namespace jaxring::test
