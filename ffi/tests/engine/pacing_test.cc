// What heartbeats say: how clocks differ, and who launched what when.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/peer_clock.h"
#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

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

// A heartbeat that arrives at `here`, `travel` after the one that it answers was sent. The other clock is 7 s ahead.
BeatTimes Echo(int64_t here, int64_t travel) { return {here - travel / 2 + 7 * kSecond, here - travel, 0}; }

CASE("the error of a clock grows until there is a better comparison") {
  PeerClock clock;
  CHECK_EQ(clock.At(kSecond).error_ns, -1);
  clock.Compare(Echo(kSecond, 40000), kSecond);
  CHECK_EQ(clock.At(kSecond).offset_ns, 7 * kSecond);
  CHECK_EQ(clock.At(kSecond).error_ns, 20001);
  // This one took 5 ms, so it says less than the first one still does.
  clock.Compare(Echo(11 * kSecond, 5000000), 11 * kSecond);
  CHECK_EQ(clock.At(11 * kSecond).error_ns, 1020001);
  clock.Compare(Echo(11 * kSecond, 2000000), 11 * kSecond);
  CHECK_EQ(clock.At(11 * kSecond).error_ns, 1000001);
}

CASE("times that no heartbeat has") {
  constexpr int64_t kMost = INT64_MAX;
  PeerClock clock;
  for (const BeatTimes& times :
       {BeatTimes{1, kMost, kMost}, BeatTimes{1, 1, kMost}, BeatTimes{kMost, kMost, 0}, BeatTimes{0, 1, 0},
        BeatTimes{1, 0, 0}, BeatTimes{kMost, INT64_MIN, INT64_MIN}, BeatTimes{1, 1, INT64_MIN}}) {
    clock.Compare(times, kSecond);
    CHECK_EQ(clock.At(kSecond).error_ns, -1);
  }
  clock.Compare({kMost, 1, 0}, kSecond);
  CHECK(clock.At(kSecond).error_ns > 0);
}

}  // namespace
}  // namespace jaxring::test
