// What heartbeats say: how clocks differ, and who launched what when.
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "engine/heartbeats/resource_sampler.h"
#include "network/peers/peer_clock.h"
#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"
#include "transport/core/links.h"

namespace jaxring::test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// What the heartbeats of process 1 have said to process 0, once they have said all of it.
Arrivals ArrivalsAtZero(Job* job, size_t launches) {
  Arrivals all{1, {}, {}, {}};
  while (all.clock.error_ns < 0 || all.shared_launches.size() < launches || all.samples.size() < 2) {
    const std::vector<Arrivals> found = job->engine(0).network().peers().TakeArrivals();
    CHECK(found.front().process == -1 && found.front().shared_launches.empty());
    CHECK(found.size() <= 2);
    if (found.size() == 2) {
      CHECK_EQ(found[1].process, 1);
      all.clock = found[1].clock;
      all.shared_launches.insert(all.shared_launches.end(), found[1].shared_launches.begin(),
                                 found[1].shared_launches.end());
      all.samples.insert(all.samples.end(), found[1].samples.begin(), found[1].samples.end());
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
    const Arrivals arrivals = ArrivalsAtZero(&job, 2);
    // Both are of this process, so their clocks are one.
    CHECK(std::abs(arrivals.clock.offset_ns) <= arrivals.clock.error_ns);
    for (const SharedLaunch& launch : arrivals.shared_launches) {
      CHECK(launch.own.key == launch.theirs.key && launch.own.sequence == launch.theirs.sequence);
      CHECK_EQ(job.engine(0).recorder().At(launch.number)->key, launch.own.key);
      CHECK_EQ(launch.theirs.launched_ns,
               job.engine(1).recorder().FindLaunch(launch.own.key, launch.own.sequence)->first.launched_ns);
    }
    CHECK(arrivals.samples[0].at_ns < arrivals.samples[1].at_ns && arrivals.samples[0].cpu_ns > 0);
    CHECK(arrivals.samples[0].cpu_ns <= arrivals.samples[1].cpu_ns);
  }
}

// Two threads on one CPU wait for it in turn.
CASE("the first sample has how long threads have waited for CPUs") {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads(2);
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
      while (!over.load(std::memory_order_relaxed)) {
      }
    });
  }
  const Links links(256, nullptr);
  const auto until = Clock::now() + std::chrono::seconds(60);  // where the kernel counts no delays, none will come
  for (int64_t delayed_ns = 0; delayed_ns == 0;) {
    CHECK(Clock::now() < until);
    ResourceSampler sampler;
    sampler.ReadDelays(Clock::now());
    delayed_ns = sampler.Sample(Clock::now(), links)->delayed_ns;
  }
  CHECK(ResourceSampler{}.Sample(Clock::now(), links)->delayed_ns > 0);
  over = true;
  for (std::thread& thread : threads) thread.join();
}

CASE("the connections that can go on over another path are counted for samples only") {
  const Links links(256, nullptr);
  ResourceSampler sampler;
  const auto now = Clock::now();
  int counted = 0;
  const auto count = [&counted] { return std::pair{++counted, 0}; };
  CHECK_EQ(sampler.Sample(now, links, count)->resumable, 1);
  CHECK(!sampler.Sample(now + std::chrono::milliseconds(499), links, count));
  CHECK_EQ(counted, 1);
  CHECK_EQ(sampler.Sample(now + std::chrono::milliseconds(500), links, count)->resumable, 2);
}

// A heartbeat that arrives at `here`, `travel` after the one that it answers was sent. The other clock is 7 s ahead.
HeartbeatTimes Echo(int64_t here, int64_t travel) { return {here - travel / 2 + 7 * kSecond, here - travel, 0}; }

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

// A dialled connection's path is watched at the end that has dialled, by what is sent there.
CASE("heartbeats go on the connection that this process has dialled") {
  for (const bool first : {false, true}) {
    Job job(1, Wire::kShared);
    int dialled[2], accepted[2];
    for (int* ends : {dialled, accepted}) CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    for (const bool now : {first, !first}) {
      job.network(0).AddControl(1, std::make_unique<Stream>((now ? dialled : accepted)[0]), "", now);
    }
    pollfd waits{dialled[1], POLLIN, 0};
    CHECK(poll(&waits, 1, 60'000) == 1);
    const Stream kept(dialled[1]);
    close(accepted[1]);
  }
}

CASE("a process that has dialled no connection sends heartbeats on the one that it has accepted") {
  Job job(1, Wire::kShared);
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  job.network(0).AddControl(1, std::make_unique<Stream>(ends[0]));
  pollfd waits{ends[1], POLLIN, 0};
  CHECK(poll(&waits, 1, 60'000) == 1);
  close(ends[1]);
}

CASE("times that no heartbeat has") {
  constexpr int64_t kMost = INT64_MAX;
  PeerClock clock;
  for (const HeartbeatTimes& times : {HeartbeatTimes{1, kMost, kMost}, HeartbeatTimes{1, 1, kMost},
                                      HeartbeatTimes{kMost, kMost, 0}, HeartbeatTimes{0, 1, 0}, HeartbeatTimes{1, 0, 0},
                                      HeartbeatTimes{kMost, INT64_MIN, INT64_MIN}, HeartbeatTimes{1, 1, INT64_MIN}}) {
    clock.Compare(times, kSecond);
    CHECK_EQ(clock.At(kSecond).error_ns, -1);
  }
  clock.Compare({kMost, 1, 0}, kSecond);
  CHECK(clock.At(kSecond).error_ns > 0);
}

}  // namespace
}  // namespace jaxring::test
