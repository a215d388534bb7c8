// One process cannot allocate memory: the error names the allocation in all processes, and later operations succeed.
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tests/support/cases.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

// A process that cannot make its links gets no plan. The others fail at once, not at their deadline.
void CheckLinks(Wire wire) {
  Job job(2, wire);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100));
  std::atomic<bool> none{true};
  job.Answer(site.call.site(0)->spec().specs[0], [&](int process, const PlanRequest& request) {
    const Settings& settings = site.call.settings();
    request.Identify(settings.key, Half::kBoth, process);
    if (process == 1 && none) {
      return request.Reject(Status::Error(Code::kResourceExhausted, "no memory for a link"));
    }
    request.Resolve(MakePlan(site.call.schedule(), settings, process, job.channels()));
  });
  for (int again = 0; again < 3; ++again) {
    for (const Status& status : site.Run({0, 1, 2, 3})) {
      CHECK(status.code == Code::kResourceExhausted && Says(status, "no memory for a link"));
    }
  }
  none = false;
  for (int i = 0; i < 3; ++i) site.RunOk();
}

// Two processes may be connected only after one of them has failed an operation that the other is about to begin.
CASE("a failure before the connection") {
  ProcessEngine early(EngineOptions{}), late(EngineOptions{});
  early.network().BroadcastFailure(77, Status::Error(Code::kResourceExhausted, "no memory"), 0);
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  early.network().AddControl(1, std::make_unique<Stream>(ends[0]));
  late.network().AddControl(0, std::make_unique<Stream>(ends[1]));
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (!late.network().failures().Find(77)) {
    CHECK(Clock::now() < deadline);
    std::this_thread::yield();
  }
  const Status told = *late.network().failures().Find(77);
  CHECK(told.code == Code::kResourceExhausted && Says(told, "no memory (Process 0 was the first to see it.)"));
}

// Scratch larger than the address space: a lane fails the operation for all processes, also for those that need none.
[[maybe_unused]] void CheckScratch(Wire wire) {
  Job job(4, wire);
  Site4 site(&job, "all_reduce halving_doubling 4x1 x1", Sized(50));  // fits a slot whole
  job.Answer(site.call.site(0)->spec().specs[0], [&](int process, const PlanRequest& request) {
    auto plan = MakePlan(site.call.schedule(), site.call.settings(), process, job.channels());
    plan->shape.tile_elements = uint64_t{1} << 50;
    request.Resolve(plan);
  });
  for (const Status& status : site.Run({0, 1, 2, 3})) {
    CHECK(status.code == Code::kResourceExhausted && Says(status, "has no memory for ") && Says(status, " of scratch"));
    CHECK(Says(status, "JAXRING_BUFFSIZE"));
  }
}

CASE("no memory for links") {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) CheckLinks(wire);
}

// The sanitizers' allocators end the process instead.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
CASE("no memory for scratch") {
  for (Wire wire : {Wire::kShared, Wire::kTcp}) CheckScratch(wire);
}
#endif

}  // namespace
}  // namespace jaxring::test
