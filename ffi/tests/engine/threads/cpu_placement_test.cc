// How waiting threads share CPUs: which of those on one CPU moves, where to, and by which policy they wait.
#include "engine/threads/cpu_placement.h"

#include <vector>

#include "engine/threads/wait_policy.h"
#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "transport/core/doorbell.h"

namespace jaxring::test {
namespace {

using Others = std::vector<std::pair<int, int>>;

cpu_set_t Allowed(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int processor : processors) CPU_SET(processor, &set);
  return set;
}

CASE("the higher process leaves") {
  const cpu_set_t two = Allowed({0, 1});
  CHECK_EQ(ChooseCpu(1, 0, Others{{0, 0}}, two), 1);
  CHECK_EQ(ChooseCpu(0, 0, Others{{1, 0}}, two), -1);
  CHECK_EQ(ChooseCpu(1, 0, Others{{0, 1}}, two), -1);
  CHECK_EQ(ChooseCpu(1, 0, Others{{0, -1}}, two), -1);
  CHECK_EQ(ChooseCpu(1, 1, Others{{0, 1}}, two), 0);
}

CASE("no process leaves where there is no room") {
  CHECK_EQ(ChooseCpu(1, 0, Others{{0, 0}}, Allowed({0})), -1);
  // Three processes on two CPUs: one CPU is shared in any case.
  CHECK_EQ(ChooseCpu(2, 0, Others{{0, 0}, {1, -1}}, Allowed({0, 1})), -1);
  // Chooses the next free CPU that is allowed, and none on which another process waits.
  CHECK_EQ(ChooseCpu(2, 5, Others{{0, 5}, {1, 7}}, Allowed({2, 5, 7})), 2);
  CHECK_EQ(ChooseCpu(1, 3, Others{{0, 3}, {2, 8}, {3, -1}}, Allowed({1, 3, 8, 1000})), 1000);
}

CASE("a crowd is spread evenly") {
  const cpu_set_t two = Allowed({0, 1});
  CHECK_EQ(ChooseCpu(3, 0, Others{{0, 0}, {1, 1}, {2, 0}}, two), 1);
  // Only the highest process on the CPU moves.
  CHECK_EQ(ChooseCpu(2, 0, Others{{0, 0}, {1, 1}, {3, 0}}, two), -1);
  CHECK_EQ(ChooseCpu(3, 0, Others{{0, 0}, {1, 1}, {2, 1}}, two), -1);
  // A process that does not wait counts as if it were on that CPU.
  CHECK_EQ(ChooseCpu(3, 0, Others{{0, 0}, {1, -1}, {2, 0}}, two), 1);
  CHECK_EQ(ChooseCpu(3, 0, Others{{0, 0}, {1, -1}, {2, -1}}, two), -1);
  CHECK_EQ(ChooseCpu(7, 2, Others{{0, 2}, {1, 2}, {2, 2}, {3, 4}, {4, 4}, {5, 6}}, Allowed({2, 4, 6})), 6);
}

CASE("a thread that was moved may go on to others") {
  cpu_set_t before, after;
  CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &before)) MoveToCpu(processor, before);
  }
  CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&before, &after));
}

// A waiter yields to a process on its CPU unless that is known to wait in the same operation.
CASE("a process that only waits needs no CPU") {
  const auto own = Doorbell::Create(), seen = Doorbell::Open("/proc/self/fd/" + std::to_string(own->fd()));
  CHECK(seen->WaiterCpu() == -1 && seen->MayNeedCpu(0, 7) && seen->MayNeedCpu(3, 7));
  own->SetWaiter(3, 7);
  CHECK(seen->WaiterCpu() == 3 && !seen->MayNeedCpu(3, 7) && seen->MayNeedCpu(3, 8) && !seen->MayNeedCpu(2, 8));
  own->ClearWaiter();
  CHECK(seen->WaiterCpu() == -1 && seen->MayNeedCpu(3, 7) && !seen->MayNeedCpu(2, 7));
  own->SetWaiter(2, 8);
  CHECK(seen->WaiterCpu() == 2 && !seen->MayNeedCpu(2, 8) && !seen->MayNeedCpu(3, 8));
}

CASE("the policy of a crowded host holds while it is crowded") {
  WaitPolicies waits(std::chrono::microseconds(20), std::chrono::microseconds(300));
  const WaitPolicy usual = waits.current();
  CHECK(usual.patience == std::chrono::microseconds(300) && usual.patient_with == Patient::kNone &&
        usual.keep_cpu.count() == 0);
  const size_t cpus = AllowedCpus();
  waits.Choose(cpus);
  CHECK(waits.current().patience == std::chrono::microseconds(3000) && waits.current().patient_with == Patient::kAll);
  CHECK(waits.current().polls < usual.polls && waits.current().keep_cpu.count() > 0);
  CHECK(waits.current().Describe() ==
        "poll for 3000 us, with a yield after 2 polls unless all on the CPU wait for the same, then sleep");
  waits.Choose(cpus - 1);
  CHECK_EQ(waits.current().polls, usual.polls);
  CHECK(waits.current().patient_with == Patient::kSharedMemory && waits.current().patience == usual.patience);
  CHECK(
      waits.current().Describe() ==
      "poll for 300 us for operations that are small or in shared memory and 20 us for others, with a yield after 128 "
      "polls, then sleep");
  if (cpus > 1) {
    waits.Choose(cpus - 2);
    CHECK(waits.current().patient_with == Patient::kNone);
  }
  // Containers are hosts of their own, and may run on the same CPUs.
  waits.SetInOtherHosts(1);
  waits.Choose(cpus - 1);
  CHECK(waits.current().polls < usual.polls);
  waits.SetInOtherHosts(0);
  waits.Choose(cpus - 1);
  CHECK_EQ(waits.current().polls, usual.polls);
}

CASE("what is sent first") {
  auto first = [](const char* name, uint64_t block) {
    const Schedule& schedule = Find(name);
    Settings settings;
    settings.block = block;
    settings.protocol = Protocol::kLL;
    const bool all = MakePlan(schedule, settings, 0, 1)->sends_first;
    for (int p = 1; p < schedule.processes(); ++p) CHECK_EQ(MakePlan(schedule, settings, p, 1)->sends_first, all);
    return all;
  };
  CHECK(first("all_reduce oneshot 4x1 x1", 40));
  CHECK(!first("all_reduce oneshot 4x1 x1", 4000));  // tile after tile
  CHECK(first("all_gather direct 4x1 x1", 40));
  // What a rank gathers of its own is no message.
  for (const char* name : {"all_to_all pxn 3x2 x1", "all_to_all multileader 3x2 x1"}) CHECK(first(name, 40));
  for (const char* name : {"all_reduce direct 4x1 x1", "all_reduce ring 4x1 x1", "all_gather ring 4x1 x1"}) {
    CHECK(!first(name, 40));
  }
}

}  // namespace
}  // namespace jaxring::test
