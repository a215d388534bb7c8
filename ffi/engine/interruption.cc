// Ends operations in flight, as on Ctrl-C or because a program turns out to differ. The engine stays usable for later
// calls.
#include <algorithm>

#include "engine/engine.h"
#include "engine/site.h"

namespace jaxring {

bool Engine::InFlight(uint64_t plan_key) {
  const ActiveOperations::List active = active_.Get();
  return std::any_of(active.begin(), active.end(), [&](const auto& op) { return op->plan().key == plan_key; });
}

void Engine::FailPlan(uint64_t plan_key, const Status& status) {
  bool found = false;
  for (auto& op : active_.Get()) {
    if (op->plan().key != plan_key) continue;
    op->Fail(status);
    found = true;
  }
  if (found) network_->doorbell().NotifyAll();
}

bool Engine::Interrupt(const std::string& why, Clock::time_point at) {
  bool found = false;
  for (auto& op : active_.Get()) {
    if (op->begun() > at || op->failed()) continue;
    op->Fail(Status::Error(Code::kAborted, op->What() + ": " + why));
    found = true;
  }
  if (found) network_->doorbell().NotifyAll();
  for (const auto& site : sites_.All()) found |= site->Interrupt(why, at);
  return found;
}

bool Site::Interrupt(const std::string& why, Clock::time_point at) {
  MutexLock lock(mutex_);
  bool found = false;
  for (Group& group : groups_) {
    for (Execution& execution : group.waiting) {
      if (execution.begun > at || !execution.failure.ok()) continue;
      const std::string what = group.ready ? group.collectives[0].plan->what : CallName(0);
      // The failed execution is kept, so that ranks that arrive later fail, too.
      execution.failure = Status::Error(Code::kAborted, what + ": " + why);
      FailAll(execution, execution.failure);
      TellFailure(group, execution);
      found = true;
    }
  }
  return found;
}

}  // namespace jaxring
