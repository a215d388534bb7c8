// Program latches hold the operations of a plan back until the other processes have confirmed that their program is the
// same.
#include <array>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

using Latches = std::array<std::shared_ptr<ProgramLatch>, 2>;

// Answers the site's requests for a plan in each process with one that has that process's latch.
void AnswerWith(Job* job, Site4* site, const Latches& latches) {
  job->Answer(site->call.site(0)->spec().specs[0], [=](int process, const PlanRequest& request) {
    auto plan = MakePlan(site->call.schedule(), site->call.settings(), process, job->channels());
    plan->latch = latches[process];
    request.Resolve(plan);
  });
}

// Operations of a plan with a latch begin once all processes that it waits for have been confirmed, have failed or have
// ended.
CASE("a closed latch") {
  Job job(2, Wire::kShared);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100, 1));
  std::shared_ptr<ProgramLatch> latches[2] = {std::make_shared<ProgramLatch>(std::set<int>{1}),
                                              std::make_shared<ProgramLatch>(std::set<int>{0})};
  AnswerWith(&job, &site, {latches[0], latches[1]});
  auto begin = [&](std::vector<Buffer>* outputs, Ends* ends) {
    *outputs = Outputs(site.call);
    for (int rank : {0, 1, 2, 3}) {
      site.call.Arrive(rank, site.run, site.inputs[rank].data(), (*outputs)[rank].data(), ends->Expect());
    }
    ++site.run;
  };
  for (const Status& status : site.Run({0, 1, 2, 3})) {
    CHECK(status.code == Code::kDeadlineExceeded);
    CHECK(Says(status, "waits for rank 2 (process 1) to begin this program") ||
          Says(status, "waits for rank 0 (process 0) to begin this program"));
  }
  // Python receives control messages and reacts. A message that is sent before there is a connection arrives with it.
  const uint64_t key = site.call.settings().key;
  CHECK(!job.engine(0).InFlight(key));
  std::vector<Buffer> outputs;
  {
    Ends ends("failed by its plan");
    begin(&outputs, &ends);
    while (!job.engine(0).InFlight(key)) std::this_thread::yield();
    job.engine(0).network().peers().SendMessage(1, "they differ");
    std::optional<ControlMessage> message;
    while (!(message = job.engine(1).python().NextControlMessage())) std::this_thread::yield();
    CHECK(message->sender == 0 && message->text == "they differ" && !job.engine(1).python().NextControlMessage());
    job.engine(0).FailPlan(key, Status::Error(Code::kInvalidArgument, "they differ"));
    for (const Status& status : ends.Wait())
      CHECK(status.code == Code::kInvalidArgument && Says(status, "they differ"));
  }
  Ends ends("confirmed");
  begin(&outputs, &ends);
  job.engine(0).Confirm(*latches[0], 7);
  CHECK(!latches[0]->open());
  job.engine(0).Confirm(*latches[0], 1);
  job.engine(1).Confirm(*latches[1], 0);
  for (const Status& status : ends.Wait()) CHECK(status.ok());
  site.RunOk();
}

// A latch does not wait for a process that has ended in good order.
CASE("a latch that waits for a process that is gone") {
  Job job(2, Wire::kTcp);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100, 60));
  const auto latch = std::make_shared<ProgramLatch>(std::set<int>{1});
  AnswerWith(&job, &site, {latch, latch});
  job.engine(1).Abort("this process is ending", 2, true);
  job.Cut(0, 1);
  for (const Status& status : site.Run({0, 1})) CHECK(!status.ok() && status.code != Code::kDeadlineExceeded);
  CHECK(latch->open());
}

// A process that finds that the programs differ may end before the other one has read its last message, which says so.
CASE("a latch that waits for a process that has just ended") {
  Job job(2, Wire::kTcp);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100, 60));
  const auto latch = std::make_shared<ProgramLatch>(std::set<int>{1});
  AnswerWith(&job, &site, {latch, latch});
  std::thread python([&] {
    while (!job.engine(0).InFlight(site.call.settings().key)) std::this_thread::yield();
    job.engine(1).Abort("this process is ending", 2, true);
    while (job.engine(0).network().peers().Gone() != std::vector<int>{1}) std::this_thread::yield();
    // The engine's tick comes several times meanwhile.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    CHECK(!latch->open());
    job.engine(0).FailPlan(site.call.settings().key, Status::Error(Code::kInvalidArgument, "they differ"));
  });
  for (const Status& status : site.Run({0, 1}))
    CHECK(status.code == Code::kInvalidArgument && Says(status, "they differ"));
  python.join();
}

}  // namespace
}  // namespace jaxring::test
