// Calls that are not executed: without a plan, or with operands that do not fit it.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
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
    auto site = Site::Make(&job.engine(0), made);
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

// Parameters, operands or states of one rank do not fit the plan's epilogue: all ranks of the process fail.
CASE("buffers of an epilogue that do not fit") {
  constexpr size_t kBlock = 100;
  Job job(1, Wire::kShared);
  Settings settings = Sized(kBlock, 60, Protocol::kMemory);
  settings.dtype = DType::kF32;
  auto site = Site::Make(&job.engine(0), SiteSpec{{"momentum"}, {0, 1, 2, 3}, 4, 60, {0}});
  job.Answer("momentum", [&](int process, const PlanRequest& request) {
    auto plan = MakePlan(Find("reduce_scatter direct 1x4 x1"), settings, process, job.channels());
    plan->epilogue = MakeEpilogue({"momentum"}, DType::kF32, DType::kF32, {DType::kF32, DType::kF32});
    for (RankTable& table : plan->group.locals) {
      for (Step& step : table.steps) {
        if (step.flags & StepFlag::kFinal) step.flags |= StepFlag::kEpilogue;
      }
    }
    CheckPlan(*plan, job.engine(process).network().links().slot_bytes());
    request.Resolve(std::move(plan));
  });
  int run = 0;
  // Executes it on gradients, params and traces of ones, with rank 2's buffers as `change` leaves them.
  auto execute = [&](const std::function<void(std::unique_ptr<EpilogueBuffers>&)>& change) {
    std::vector<float> in(4 * kBlock, 1), parameters = {0.5, 0, 2, 0};
    std::vector<std::vector<float>> out(4, std::vector<float>(kBlock)), params(4, std::vector<float>(kBlock, 1));
    std::vector<std::vector<float>> traces = params;
    auto buffer = [](std::vector<float>& values) {
      return EpilogueBuffers::Buffer{reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)};
    };
    Ends ends("momentum");
    for (int rank = 0; rank < 4; ++rank) {
      Arrival arrival = Arriving(rank, run, in, out[rank], ends.Expect());
      auto& epilogue = arrival.participant.epilogue;
      epilogue = std::make_unique<EpilogueBuffers>();
      epilogue->parameters = buffer(parameters);
      epilogue->further = {buffer(params[rank]), buffer(traces[rank])};
      epilogue->states = {buffer(traces[rank])};
      if (rank == 2) change(epilogue);
      site->Arrive(std::move(arrival));
    }
    ++run;
    std::vector<Status> statuses = ends.Wait();
    for (int rank = 0; statuses[0].ok() && rank < 4; ++rank) {
      CHECK(traces[rank] == std::vector<float>(kBlock, 4 + 2));
      CHECK(out[rank] == std::vector<float>(kBlock, 1 - 0.5F * 6));
    }
    return statuses;
  };
  const std::vector<std::function<void(std::unique_ptr<EpilogueBuffers>&)>> misfits = {
      [](auto& epilogue) { epilogue.reset(); },
      [](auto& epilogue) { epilogue->parameters.bytes -= sizeof(float); },
      [](auto& epilogue) { epilogue->further[0].bytes -= sizeof(float); },
      [](auto& epilogue) { epilogue->further[1].bytes += sizeof(float); },
      [](auto& epilogue) { epilogue->further.pop_back(); },
      [](auto& epilogue) { epilogue->states[0].bytes -= sizeof(float); },
      [](auto& epilogue) { epilogue->states.clear(); },
  };
  for (const auto& misfit : misfits) {
    for (const Status& status : execute(misfit)) {
      CHECK(status.code == Code::kInternal &&
            Says(status, "parameters, operands or states of its epilogue or codes do not fit the plan"));
    }
    for (const Status& status : execute([](auto&) {})) CHECK(status.ok());
  }
}

// Failed planning fails the ranks that wait, and is tried again for ranks that arrive later.
CASE("a plan is refused") {
  Job job(1, Wire::kShared);
  const Schedule& schedule = Find("all_reduce direct 1x4 x1");
  Settings settings = Sized(100, 60, Protocol::kMemory);
  auto site = Site::Make(&job.engine(0), SiteSpec{{"rejected"}, {0, 1, 2, 3}, 4, 60, {0}});
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
