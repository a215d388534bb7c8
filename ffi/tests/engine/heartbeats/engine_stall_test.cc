// A process that waits for long warns once which process it waits for, and again after much longer.
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

EngineOptions Warning(double after_s) {
  EngineOptions options{2, 256, 20, 20};
  options.stall_warning_s = after_s;
  return options;
}

bool SaysAll(const std::optional<std::string>& stall, const std::vector<std::string>& texts) {
  if (!stall) Fail(__FILE__, __LINE__, "it warns");
  return std::all_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return Says(Status::Error(Code::kInternal, *stall), text); });
}

// One process does not arrive. The process that waits for it warns and says what it does; the others warn later and
// name the process that they wait for.
void CheckAbsentProcess(Wire wire) {
  Job job(4, wire, Warning(0.2), 2);
  Site4 site(&job, "all_reduce ring 4x1 x1", Sized(700, 120));
  site.RunOk();
  std::vector<Buffer> outputs = Outputs(site.call);
  Ends ends(site.call.Describe());
  auto arrive = [&](int rank) {
    site.call.Arrive(rank, site.run, site.inputs[rank].data(), outputs[rank].data(), ends.Expect());
  };
  for (int rank : {0, 1, 3}) arrive(rank);
  const std::string what = " s in test all_reduce ring 4x1 x1, execution 1: ";
  const auto first = job.engine(3).python().NextStall(60);
  CHECK(SaysAll(first, {"has waited ", what, "rank 3 (process 3) waits for a message from rank 2 (process 2). ",
                        "rank 2 (process 2) is alive, and between operations, ", "execution 0.", "It fails 120 s after",
                        "JAXRING_STALL_WARNING"}));
  CHECK(SaysAll(job.engine(0).python().NextStall(60),
                {what, "rank 0 (process 0) waits for a message from rank 3 (process 3)."}));
  const auto second = job.engine(3).python().NextStall(60);
  CHECK(SaysAll(second, {what}) && second->find("JAXRING_STALL_WARNING") == second->npos);
  arrive(2);
  ends.WaitOk();
}

// Ranks of the same process do not arrive, and a plan does not.
CASE("a rank of this process does not arrive") {
  Job job(1, Wire::kShared, Warning(0.2), 1);
  Site4 site(&job, "all_reduce ring 1x4 x1", Sized(100));
  site.RunOk();
  std::vector<Buffer> outputs = Outputs(site.call);
  Ends ends(site.call.Describe());
  auto arrive = [&](int rank) {
    site.call.Arrive(rank, site.run, site.inputs[rank].data(), outputs[rank].data(), ends.Expect());
  };
  for (int rank : {0, 2}) arrive(rank);
  CHECK(SaysAll(job.engine(0).python().NextStall(60),
                {"has waited ", " s in test all_reduce ring 1x4 x1, execution 1 (2 of its 4 ranks have come). "}));
  for (int rank : {1, 3}) arrive(rank);
  ends.WaitOk();

  std::promise<void> answered;
  job.Answer("waits", [&](int, const PlanRequest& request) {
    job.engine(0).python().PlanningWaitsFor("process 1 on b to answer (10.0.0.2 port 4: no answer yet)");
    answered.get_future().wait();
    request.Reject(Status::Error(Code::kUnavailable, "no plan"));
  });
  auto unplanned = Site::Make(&job.engine(0), SiteSpec{{"waits"}, {0}, 1, 60, {0}});
  Ends rejected("rejected");
  Arrival arrival{0, 0, 1, {}, 0, 0};
  arrival.participant.done = rejected.Expect();
  unplanned->Arrive(std::move(arrival));
  CHECK(SaysAll(job.engine(0).python().NextStall(60), {"has waited ",
                                                       " s in the planning of waits, which waits for process 1 on "
                                                       "b to answer (10.0.0.2 port 4: no answer yet). "}));
  // The caller's clock may be older than the call.
  std::vector<Activity> activities;
  unplanned->Describe(Clock::now() - std::chrono::minutes(10), &activities);
  CHECK(activities.size() == 1 && activities[0].age_ms == 0);
  answered.set_value();
  rejected.Wait();
}

// The peer may be planning what this process waits for: that is no other program.
CASE("a peer that is still planning") {
  Job job(2, Wire::kShared, Warning(0.2), 1);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100));
  site.RunOk();
  std::promise<void> answered;
  job.Answer("waits", [&](int, const PlanRequest& request) {
    answered.get_future().wait();
    request.Reject(Status::Error(Code::kUnavailable, "no plan"));
  });
  auto unplanned = Site::Make(&job.engine(1), SiteSpec{{"waits"}, {0}, 1, 60, {0}});
  Ends rejected("rejected");
  Arrival arrival{0, 0, 1, {}, 0, 0};
  arrival.participant.done = rejected.Expect();
  unplanned->Arrive(std::move(arrival));

  std::vector<Buffer> outputs = Outputs(site.call);
  Ends ends(site.call.Describe());
  auto arrive = [&](int rank) {
    site.call.Arrive(rank, site.run, site.inputs[rank].data(), outputs[rank].data(), ends.Expect());
  };
  for (int rank : {0, 1}) arrive(rank);
  auto stall = job.engine(0).python().NextStall(60);
  // The first may come before the heartbeat that says so.
  while (stall && stall->find("in the planning of waits") == std::string::npos)
    stall = job.engine(0).python().NextStall(60);
  CHECK(SaysAll(stall, {"(process 1) is alive, and in the planning of waits, for "}));
  CHECK(stall->find("different programs") == std::string::npos);
  answered.set_value();
  rejected.Wait();
  for (int rank : {2, 3}) arrive(rank);
  ends.WaitOk();
}

CASE("no warning without the option") {
  Job job(2, Wire::kShared, Warning(0), 1);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100, 1));
  for (const Status& status : site.Run({0, 1})) CHECK(status.code == Code::kDeadlineExceeded);
  CHECK(!job.engine(0).python().NextStall(0));
}

CASE("a process does not arrive") {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) CheckAbsentProcess(wire);
}

}  // namespace
}  // namespace jaxring::test
