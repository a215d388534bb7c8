// Calls that are not executed: without a plan, or with operands that do not fit it.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

// A call that gets no plan is named by its place in the program: that of its spec, or the one that is shown for it.
CASE("a call without a plan is named by its place") {
  const std::string spec = R"({"collective":"all_reduce","site":"jit_step"})";
  Job job(1, Wire::kShared);
  job.Answer(spec, [](int, const PlanRequest&) {});  // never
  for (const char* place : {"", "train.py:3 (jit(step)/reduce_sum)"}) {
    SiteSpec made{{spec}, {0, 1}, 2, 0.2, {0}};
    if (*place != 0) made.shown = {place};
    auto site = std::make_shared<Site>(&job.engine(0), made);
    std::vector<int32_t> data(100, 5);
    Ends ends("unplanned");
    site->Arrive(Arriving(0, 1, data, data, ends.Expect()));
    const std::string at = *place != 0 ? place : "jit_step";
    for (const Status& status : ends.Wait())
      CHECK(Says(status, "no plan within the deadline for jaxring.all_reduce at " + at));
  }
}

// The buffers of one rank do not fit the plan: all ranks of the process fail.
CASE("operands that do not fit") {
  Job job(1, Wire::kShared);
  Site4 site(&job, "all_reduce direct 1x4 x1", Sized(100, 60, Protocol::kMemory));
  for (int bad = 0; bad < 4; ++bad) {
    std::vector<Buffer> outputs = Outputs(site.call);
    Ends ends("misfit");
    for (int rank = 0; rank < 4; ++rank) {
      Arrival arrival = Arriving(rank, 1, site.inputs[rank], outputs[rank], ends.Expect());
      if (rank == bad) arrival.out_bytes += 4;
      site.call.site(rank)->Arrive(std::move(arrival));
    }
    for (const Status& status : ends.Wait())
      CHECK(status.code == Code::kInternal && Says(status, "do not fit the plan"));
    site.RunOk();
  }
  Ends ends("another group");
  Buffer none(0);
  site.call.site(0)->Arrive(Arriving(4, 1, none, none, ends.Expect()));
  CHECK(Says(ends.Wait()[0], "partition 4 is in no group"));
}

// Failed planning fails the ranks that wait, and is tried again for ranks that arrive later.
CASE("a plan is refused") {
  Job job(1, Wire::kShared);
  const Schedule& schedule = Find("all_reduce direct 1x4 x1");
  Settings settings = Sized(100, 60, Protocol::kMemory);
  auto site = std::make_shared<Site>(&job.engine(0), SiteSpec{{"rejected"}, {0, 1, 2, 3}, 4, 60, {0}});
  std::atomic<int> asked{0};
  job.Answer("rejected", [&](int process, const PlanRequest& request) {
    if (asked++ < 2) return request.Reject(Status::Error(Code::kFailedPrecondition, "no plan"));
    request.Resolve(MakePlan(schedule, settings, process, job.channels()));
  });
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(100, 5));
  auto arrive = [&](int rank, int run, Ends& ends) {
    site->Arrive(Arriving(rank, run, data[rank], data[rank], ends.Expect()));
  };
  for (int rejected = 0; rejected < 2; ++rejected) {
    Ends ends("rejection");
    arrive(rejected, rejected, ends);
    for (const Status& status : ends.Wait()) CHECK(status.code == Code::kFailedPrecondition && Says(status, "no plan"));
    // A late rank of the same execution gets the same error.
    Ends late("late rejection");
    arrive(3, rejected, late);
    CHECK(late.Wait()[0].code == Code::kFailedPrecondition && asked == rejected + 1);
  }
  Ends ends("resolution");
  for (int rank = 0; rank < 4; ++rank) arrive(rank, 2, ends);
  ends.WaitOk();
  CHECK(asked == 3 && data[0] == std::vector<int32_t>(100, 20));
}

}  // namespace
}  // namespace jaxring::test
