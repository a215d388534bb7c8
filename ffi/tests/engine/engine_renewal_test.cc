// A job continues after a halt, and nothing of its old epoch reaches the new one.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/calls/site_names.h"
#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/schedules.h"
#include "tests/support/site4.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

template <class Condition>
void Until(Condition condition, const char* what) {
  const auto late = Clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (Clock::now() > late) Fail(__FILE__, __LINE__, what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Settings Sized(uint64_t block) {
  Settings settings;
  settings.block = block;
  settings.timeout_s = 60;
  settings.protocol = Protocol::kSimple;
  return settings;
}

// Participants of one execution, with buffers of their own.
struct Execution {
  Execution(Call* call, int64_t run_id, uint64_t seed)
      : on(call), run(run_id), inputs(Inputs(*call, seed)), outputs(Outputs(*call)), ends(call->Describe()) {}
  void Arrive(const std::vector<int>& ranks) {
    for (int rank : ranks) on->Arrive(rank, run, inputs[rank].data(), outputs[rank].data(), ends.Expect());
  }
  void RunOk() {
    std::vector<int> ranks;
    for (int rank = 0; rank < on->schedule().ranks(); ++rank) ranks.push_back(rank);
    Arrive(ranks);
    ends.WaitOk();
    Reference reference(*on, inputs);
    for (int rank : ranks) reference.Check(rank, outputs[rank]);
  }
  Call* on;
  int64_t run;
  std::vector<Buffer> inputs, outputs;
  Ends ends;
};

size_t Descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd"), end;
  return static_cast<size_t>(std::distance(all, end));
}

size_t SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:") != line.npos;
  return count;
}

// Old messages in rings, in transit and in the unexpected-message queue have the same names as those of the next epoch,
// since this planner's keys are the same. They hold other data, and none of them is received.
void CheckOldMessages(Wire wire) {
  Job job(2, wire);
  Call call(&job, Find("all_reduce ring 2x2 x1"), Sized(700)), other(&job, Find("all_reduce ring 2x2 x1"), Sized(700));
  Execution waits(&other, 0, 1);
  waits.Arrive({2});  // keeps process 1's workers awake, which move what fills the rings to the queue
  std::vector<std::unique_ptr<Execution>> lost;
  for (int run = 0; run < 40; ++run) {
    lost.push_back(std::make_unique<Execution>(&call, run, 100 + run));
    lost.back()->Arrive({0, 1});
  }
  waits.Arrive({3});
  Until([&] { return job.engine(1).network().unexpected().bytes() > 0; },
        "messages reach the unexpected-message queue");
  CHECK(job.engine(0).Halt("process 0 gives up"));
  CHECK(!job.engine(0).Halt("again"));
  for (auto& execution : lost) {
    for (const Status& status : execution->ends.Wait()) {
      CHECK(status.code == Code::kAborted && Says(status, "process 0 gives up"));
    }
  }
  for (const Status& status : waits.ends.Wait()) CHECK(status.code == Code::kAborted);
  Until([&] { return job.engine(1).halting().Reason().has_value(); }, "the other process is told");
  // Until the job is renewed no operation begins, not even among the ranks of one process.
  Call alone(&job, Find("all_reduce ring 1x4 x1"), Sized(700));
  Execution refused(&alone, 0, 1);
  refused.Arrive({0, 1, 2, 3});
  for (const Status& status : refused.ends.Wait()) CHECK(status.code == Code::kAborted);
  job.Renew(1);
  for (int p : {0, 1}) CHECK(job.engine(p).network().unexpected().bytes() == 0 && !job.engine(p).halting().Reason());
  for (int run = 0; run < 40; ++run) Execution(&call, run, 500 + run).RunOk();
  Execution(&other, 0, 7).RunOk();
  Execution(&alone, 0, 7).RunOk();
}

// A halt of one process reaches all, including those that are connected with it only through another process.
void CheckEverybodyIsTold(Wire wire) {
  Job job(4, wire);
  Call call(&job, Find("all_reduce ring 4x1 x1"), Sized(700));
  Execution(&call, 0, 1).RunOk();
  Execution waits(&call, 1, 2);
  waits.Arrive({0, 1, 3});
  CHECK(job.engine(2).Halt("process 2 gives up"));
  for (const Status& status : waits.ends.Wait()) {
    CHECK(status.code == Code::kAborted && Says(status, "process 2 gives up"));
  }
  for (int p = 0; p < 4; ++p) {
    Until([&] { return job.engine(p).halting().Reason() == "process 2 gives up"; }, "every process is halted");
  }
  Execution late(&call, 1, 2);
  late.Arrive({2});
  CHECK(late.ends.Wait()[0].code == Code::kAborted);
  job.Renew(1);
  for (int run = 0; run < 5; ++run) Execution(&call, run, 10 + run).RunOk();
}

// A process that was lost can take part in the next epoch.
CASE("a lost process comes back") {
  Job job(2, Wire::kShared);
  Call call(&job, Find("all_reduce ring 2x2 x1"), Sized(700));
  Execution(&call, 0, 1).RunOk();
  job.CutControl(0, 1);
  Execution fails(&call, 1, 2);
  fails.Arrive({0, 1});
  for (const Status& status : fails.ends.Wait()) CHECK(status.code == Code::kUnavailable);
  CHECK(job.engine(0).network().peers().Gone() == std::vector<int>{1});
  for (int p : {0, 1}) job.engine(p).Halt("rebuilding");
  job.Renew(1);
  CHECK(job.engine(0).network().peers().Gone().empty());
  Execution(&call, 0, 3).RunOk();
}

// Otherwise a process that cannot follow at once would form the next epoch without it.
CASE("a process that has begun the next epoch has not ended") {
  Job job(2, Wire::kShared);
  Call call(&job, Find("all_reduce ring 2x2 x1"), Sized(700));
  Execution(&call, 0, 1).RunOk();
  for (int p : {0, 1}) job.engine(p).Halt("rebuilding");
  CHECK(job.engine(1).Renew(1, 60));
  Until([&] { return job.engine(0).reporter().DescribePeer(1, "it", 0).find("another epoch") != std::string::npos; },
        "its goodbye arrives");
  CHECK(job.engine(0).network().peers().Gone().empty());
}

// Plans that arrive after the job has begun a new epoch are dropped and requested again.
CASE("a plan that comes too late") {
  Job job(1, Wire::kShared);
  const Schedule& schedule = Find("all_reduce direct 1x4 x1");
  Settings settings = Sized(100);
  settings.protocol = Protocol::kMemory;
  settings.key = job.NextKey();
  Call call(&job, schedule, settings);
  std::mutex mutex;
  std::vector<PlanRequest> asked;
  job.Answer(call.site(0)->spec().specs[0], [&](int, const PlanRequest& request) {
    std::lock_guard lock(mutex);
    asked.push_back(request);
  });
  auto requests = [&] {
    std::lock_guard lock(mutex);
    return asked.size();
  };
  auto answer = [&](const PlanRequest& request) {
    auto plan = MakePlan(schedule, settings, 0, job.channels());
    plan->epoch = request.epoch;
    request.Resolve(plan);
  };
  Execution first(&call, 0, 1);
  first.Arrive({0, 1, 2, 3});
  Until([&] { return requests() == 1; }, "a plan is asked for");
  job.engine(0).Halt("rebuilding");
  job.Renew(1);
  for (const Status& status : first.ends.Wait()) CHECK(status.code == Code::kAborted);
  Execution second(&call, 1, 2);
  second.Arrive({0, 1, 2, 3});
  Until([&] { return requests() == 2; }, "a plan is asked for again");
  answer(asked[0]);
  asked[0].Reject(Status::Error(Code::kInternal, "of no concern"));
  answer(asked[1]);
  second.ends.WaitOk();
  asked.clear();
}

// Calls with equal specs are numbered from 0 in each program, since other processes may have compiled fewer programs.
CASE("ordinals of call sites") {
  const std::vector<std::string> alone{"alike"}, joined{"alike", "other"};
  for (int program = 0; program < 3; ++program) {
    CHECK_EQ(OrdinalsOfCall("alike", alone)[0], 0u);
    CHECK_EQ(OrdinalsOfCall("alike", alone)[0], 1u);
    EndProgram({"nothing of this", "alike"});
  }
  // A collective in a fused call has an ordinal of its own, since its executions are counted with those of the call.
  const std::vector<uint64_t> first = OrdinalsOfCall("alike\nother", joined),
                              second = OrdinalsOfCall("alike\nother", joined);
  CHECK(first[0] > 1 && first[0] != first[1] && first[0] != second[0] && first[1] != second[1]);
  EndProgram({"other"});
  CHECK(OrdinalsOfCall("alike\nother", joined) == first);
}

// A program that one process compiles again gets a new site with the same key, which continues the count. A program
// that never ran counts nothing.
CASE("a program that is compiled again") {
  Job job(2, Wire::kShared);
  Call call(&job, Find("all_reduce ring 2x2 x1"), Sized(700));
  Execution(&call, 0, 1).RunOk();
  call.MakeAgain(0);
  for (int run = 1; run < 4; ++run) {
    Execution(&call, run, run + 1).RunOk();
    call.MakeAgain(run % 2);
    call.MakeAgain(run % 2);
  }
}

void CheckNothingIsLeft(Wire wire) {
  Job job(2, wire);
  Call call(&job, Find("all_reduce ring 2x2 x1"), Sized(700));
  Execution(&call, 0, 1).RunOk();
  const size_t descriptors = Descriptors(), mappings = SharedMappings();
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    Execution fails(&call, 100, epoch);
    fails.Arrive({0, 1});
    job.engine(1).Halt("rebuilding");
    for (const Status& status : fails.ends.Wait()) CHECK(status.code == Code::kAborted);
    Until([&] { return job.engine(0).halting().Reason().has_value(); }, "the other process is told");
    job.Renew(epoch);
    for (int run = 0; run < 3; ++run) Execution(&call, run, epoch + run).RunOk();
    // Workers drop ended operations at their next poll.
    Until([&] { return Descriptors() == descriptors && SharedMappings() == mappings; }, "nothing is left behind");
  }
}

// A program that is loaded while the job is rebuilt takes part in the next epoch: plans of that reach its call sites.
CASE("sites are made while epochs begin") {
  constexpr uint64_t kEpochs = 20;
  Job job(1, Wire::kShared);
  job.Answer("loaded", [](int, const PlanRequest&) {});
  std::atomic<bool> over{false};
  std::vector<std::shared_ptr<Site>> sites;
  std::thread loads([&] {
    while (!over && sites.size() < 50'000) {
      sites.push_back(Site::Make(&job.engine(0), SiteSpec{{"loaded"}, {0, 1}, 2, 60, {0}}));
    }
  });
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    job.engine(0).Halt("rebuilding");
    job.Renew(epoch);
  }
  over = true;
  loads.join();
  for (size_t i = 0; i < sites.size(); i += sites.size() / 100 + 1) {
    std::vector<int32_t> data(100);
    Ends ends("rejection");
    sites[i]->Arrive(Arriving(0, 0, data, data, ends.Expect()));
    sites[i]->Reject(0, 0, Status::Error(Code::kFailedPrecondition, "no plan in this epoch"), kEpochs);
    CHECK(Says(ends.Wait()[0], "no plan in this epoch"));
  }
}

CASE("old messages") {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) CheckOldMessages(wire);
}

CASE("a halt reaches every process") {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) CheckEverybodyIsTold(wire);
}

CASE("nothing is left") {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) CheckNothingIsLeft(wire);
}

}  // namespace
}  // namespace jaxring::test
