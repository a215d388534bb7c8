// Executions whose ranks or plans do not arrive: their deadlines, failures that other processes report, and error
// texts.
#include <algorithm>
#include <chrono>
#include <set>

#include "engine/engine.h"
#include "engine/site.h"

namespace jaxring {
namespace {

// The name of a call that has no plan yet, for messages: from the planner's JSON, else the whole text. `shown` is its
// place in the program where the JSON does not hold it.
std::string Named(const std::string& spec, const std::string& shown) {
  auto field = [&spec](const std::string& name) {
    const std::string begins = "\"" + name + "\":\"";
    const size_t at = spec.find(begins);
    return at == spec.npos ? ""
                           : spec.substr(at + begins.size(), spec.find('"', at + begins.size()) - at - begins.size());
  };
  const std::string collective = field("collective"), site = shown.empty() ? field("site") : shown;
  return collective.empty() ? spec : "jaxring." + collective + " at " + site;
}

// How many failed executions a group keeps for the ranks that have not arrived.
constexpr size_t kFailedExecutions = 64;

}  // namespace

std::string Site::CallName(size_t collective) const {
  return Named(spec_.specs[collective], collective < spec_.shown.size() ? spec_.shown[collective] : "");
}

std::string Site::WaitsFor() const {
  const std::string words = engine_->python().PlanningWaitsFor();
  return words.empty() ? words : ", which waits for " + words;
}

void Site::Expire(Group& group, Execution& execution) {
  std::set<int> ranks;
  for (const Arrival& arrival : execution.arrivals) ranks.insert(arrival.participant.rank);
  std::string have;
  for (int rank : ranks) have += (have.empty() ? "" : ", ") + std::to_string(rank);
  std::string text;
  if (group.ready) {
    text = group.collectives[0].plan->what + ": only ranks " + have +
           " of this process came within the deadline; the others did not reach this call";
  } else {
    const auto lacking = std::find_if(group.collectives.begin(), group.collectives.end(),
                                      [](const Collective& state) { return !state.plan; });
    text = "jaxring: no plan within the deadline for " + CallName(lacking - group.collectives.begin()) + WaitsFor();
  }
  execution.failure = Status::Error(Code::kDeadlineExceeded, text);
  FailAll(execution, execution.failure);
  TellFailure(group, execution);
}

void Site::TellFailure(Group& group, Execution& execution) {
  for (const Collective& state : group.collectives) {
    if (!state.identity) continue;  // one that has a plan has an identity
    const uint64_t plan_key = state.identity->key;
    const int process = state.identity->process;
    const uint64_t key = OperationKey(plan_key, execution.sequence);
    if (!state.plan || !state.plan->alone()) engine_->network().BroadcastFailure(key, execution.failure, process);
    // Drops the messages that other processes still send for it.
    engine_->network().unexpected().Discard(key);
  }
}

bool Site::FailIfReported(Group& group, Execution& execution) {
  auto key = [&execution](const Collective& state) { return OperationKey(*state.plan, execution.sequence); };
  auto shared = [](const Collective& state) { return state.plan && !state.plan->alone(); };
  std::optional<Status> failure;
  for (const Collective& state : group.collectives) {
    if (!failure && shared(state)) failure = engine_->network().failures().Find(key(state));
  }
  if (!failure) return false;
  execution.failure = std::move(*failure);
  FailAll(execution, execution.failure);
  // The other operations of the call do not begin here either.
  for (const Collective& state : group.collectives) {
    if (!shared(state)) continue;
    engine_->network().BroadcastFailure(key(state), execution.failure, -1);
    engine_->network().unexpected().Discard(key(state));
  }
  return true;
}

void Site::Describe(Clock::time_point now, std::vector<Activity>* activities) {
  MutexLock lock(mutex_);
  for (const Group& group : groups_) {
    for (const Execution& execution : group.waiting) {
      if (!execution.failure.ok()) continue;
      for (size_t i = 0; i < group.collectives.size(); ++i) {
        const Plan* plan = group.collectives[i].plan.get();
        Activity activity;
        activity.running = true;
        activity.age_ms = AgeMs(now - execution.begun);
        if (plan != nullptr) {
          activity.key = OperationKey(*plan, execution.sequence);
          activity.what = plan->what + ", execution " + std::to_string(execution.sequence) + " (" +
                          std::to_string(execution.arrivals.size()) + " of its " +
                          std::to_string(plan->group.locals.size()) + " ranks have come)";
        } else {
          activity.what = "the planning of " + CallName(i) + WaitsFor();
        }
        activities->push_back(std::move(activity));
      }
    }
  }
}

bool Site::CheckDeadlines(Clock::time_point now, const std::string* abort_reason) {
  MutexLock lock(mutex_);
  bool waiting = false;
  auto limit = std::chrono::duration<double>(spec_.timeout_s);
  for (Group& group : groups_) {
    size_t failed = 0;
    for (auto it = group.waiting.begin(); it != group.waiting.end();) {
      if (abort_reason != nullptr) {
        FailAll(*it, Status::Error(Code::kAborted, "jaxring: " + *abort_reason));
      } else if (it->failure.ok() && FailIfReported(group, *it)) {
      } else if (it->failure.ok() && now - it->begun < limit) {
        waiting = true;
        ++it;
        continue;
      } else if (it->failure.ok()) {
        Expire(group, *it);
      }
      // Keeps the failed execution for the ranks that arrive later. They would begin another execution otherwise, which
      // the other processes do not count.
      const bool keep = abort_reason == nullptr;
      failed += keep;
      it = keep ? std::next(it) : group.waiting.erase(it);
    }
    for (auto it = group.waiting.begin(); failed > kFailedExecutions; --failed) {
      while (it->failure.ok()) ++it;
      it = group.waiting.erase(it);
    }
  }
  watched_ = waiting;
  return waiting;
}

}  // namespace jaxring
