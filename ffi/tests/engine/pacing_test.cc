// What heartbeats say: how clocks differ, and who launched what when.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

// What the heartbeats of process 1 have said to process 0, once they have said all of it.
Arrivals HeardByZero(Job* job, size_t meetings) {
  Arrivals all{1, {}, {}, {}};
  while (all.clock.error_ns < 0 || all.meetings.size() < meetings || all.paces.size() < 2) {
    const std::vector<Arrivals> found = job->engine(0).TakeArrivals();
    CHECK(found.front().process == -1 && found.front().meetings.empty());
    CHECK(found.size() <= 2);
    if (found.size() == 2) {
      CHECK_EQ(found[1].process, 1);
      all.clock = found[1].clock;
      all.meetings.insert(all.meetings.end(), found[1].meetings.begin(), found[1].meetings.end());
      all.paces.insert(all.paces.end(), found[1].paces.begin(), found[1].paces.end());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return all;
}

CASE("clocks, launches and samples") {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) {
    Job job(2, wire);
    Site4 site(&job, "all_reduce ring 2x2 x1", Sized(700, 60));
    site.RunOk();
    site.RunOk();
    const Arrivals heard = HeardByZero(&job, 2);
    // Both are of this process, so their clocks are one.
    CHECK(std::abs(heard.clock.offset_ns) <= heard.clock.error_ns);
    for (const Meeting& meeting : heard.meetings) {
      CHECK(meeting.own.key == meeting.theirs.key && meeting.own.sequence == meeting.theirs.sequence);
      CHECK_EQ(job.engine(0).recorder().At(meeting.number)->key, meeting.own.key);
      CHECK_EQ(meeting.theirs.launched_ns,
               job.engine(1).recorder().FindLaunch(meeting.own.key, meeting.own.sequence)->first.launched_ns);
    }
    CHECK(heard.paces[0].at_ns < heard.paces[1].at_ns && heard.paces[0].cpu_ns > 0);
    CHECK(heard.paces[0].cpu_ns <= heard.paces[1].cpu_ns);
  }
}

}  // namespace
}  // namespace jaxring::test
