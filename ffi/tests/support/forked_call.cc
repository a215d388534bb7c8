#include "tests/support/forked_call.h"

#include <numeric>
#include <vector>

namespace jaxring::test {

ForkedCall::ForkedCall(Engine* engine, const Schedule& schedule, int process, uint64_t block, std::string spec)
    : engine_(engine), schedule_(schedule), process_(process), block_(block), spec_(std::move(spec)) {}

Status ForkedCall::Run() {
  const int ranks = static_cast<int>(schedule_.placement.size());
  if (!site_) {
    std::vector<int32_t> group(ranks);
    std::iota(group.begin(), group.end(), 0);
    site_ = Site::Make(engine_, SiteSpec{{spec_}, group, ranks, 60, {0}});
  }
  std::vector<int32_t> in(schedule_.in_blocks * block_, process_ + 1), out(schedule_.out_blocks * block_);
  Ends ends(schedule_.name + ", " + spec_);
  Arrival arrival{process_, process_, run_++, {}, in.size() * sizeof in[0], out.size() * sizeof out[0]};
  arrival.participant.in = in.data();
  arrival.participant.out = out.data();
  arrival.participant.done = ends.Expect();
  site_->Arrive(std::move(arrival));
  Status status = ends.Wait()[0];
  if (!status.ok()) return status;
  const int32_t sum = ranks * (ranks + 1) / 2;
  for (int32_t value : out) {
    if (value != sum) return Status::Error(Code::kInternal, "a wrong sum");
  }
  return status;
}

std::thread Answering(Engine* engine, int process, Job::Planner planner) {
  return std::thread([engine, process, planner = std::move(planner)] {
    PlanRequest request;
    while (true) {
      if (!engine->NextRequest(1, &request)) continue;
      planner(process, request);
      request = {};
    }
  });
}

}  // namespace jaxring::test
