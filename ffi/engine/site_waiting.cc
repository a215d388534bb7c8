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
constexpr size_t kFailedInstances = 64;

}  // namespace

std::string Site::CallName(size_t collective) const {
  return Named(spec_.specs[collective], collective < spec_.shown.size() ? spec_.shown[collective] : "");
}

std::string Site::WaitsFor() const {
  const std::string words = engine_->python().PlanningWaitsFor();
  return words.empty() ? words : ", which waits for " + words;
}

void Site::Expire(Group& group, Instance& instance) {
  std::set<int> ranks;
  for (const Arrival& arrival : instance.arrivals) ranks.insert(arrival.participant.rank);
  std::string have;
  for (int rank : ranks) have += (have.empty() ? "" : ", ") + std::to_string(rank);
  std::string text;
  if (group.ready) {
    text = group.parts[0].plan->what + ": only ranks " + have +
           " of this process came within the deadline; the others did not reach this call";
  } else {
    const auto lacking =
        std::find_if(group.parts.begin(), group.parts.end(), [](const Part& part) { return !part.plan; });
    text = "jaxring: no plan within the deadline for " + CallName(lacking - group.parts.begin()) + WaitsFor();
  }
  instance.failure = Status::Error(Code::kDeadlineExceeded, text);
  FailAll(instance, instance.failure);
  TellFailure(group, instance);
}

void Site::TellFailure(Group& group, Instance& instance) {
  for (const Part& part : group.parts) {
    if (!part.identity) continue;  // one that has a plan has an identity
    const uint64_t plan_key = part.identity->key;
    const int process = part.identity->process;
    const uint64_t key = OperationKey(plan_key, instance.sequence);
    if (!part.plan || !part.plan->alone()) engine_->network().SpreadFailure(key, instance.failure, process);
    // Drops the messages that other processes still send for it.
    engine_->network().unexpected().Discard(key);
  }
}

bool Site::FailIfReported(Group& group, Instance& instance) {
  auto key = [&instance](const Part& part) { return OperationKey(*part.plan, instance.sequence); };
  auto shared = [](const Part& part) { return part.plan && !part.plan->alone(); };
  std::optional<Status> failure;
  for (const Part& part : group.parts) {
    if (!failure && shared(part)) failure = engine_->network().failures().Find(key(part));
  }
  if (!failure) return false;
  instance.failure = std::move(*failure);
  FailAll(instance, instance.failure);
  // The other operations of the call do not begin here either.
  for (const Part& part : group.parts) {
    if (!shared(part)) continue;
    engine_->network().SpreadFailure(key(part), instance.failure, -1);
    engine_->network().unexpected().Discard(key(part));
  }
  return true;
}

void Site::Describe(Clock::time_point now, std::vector<Activity>* activities) {
  MutexLock lock(mutex_);
  for (const Group& group : groups_) {
    for (const Instance& instance : group.waiting) {
      if (!instance.failure.ok()) continue;
      for (size_t i = 0; i < group.parts.size(); ++i) {
        const Plan* plan = group.parts[i].plan.get();
        Activity activity;
        activity.running = true;
        activity.age_ms = AgeMs(now - instance.begun);
        if (plan != nullptr) {
          activity.key = OperationKey(*plan, instance.sequence);
          activity.what = plan->what + ", execution " + std::to_string(instance.sequence) + " (" +
                          std::to_string(instance.arrivals.size()) + " of its " + std::to_string(plan->locals.size()) +
                          " ranks have come)";
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
      // Keeps the failed instance for the ranks that arrive later. They would begin another execution otherwise, which
      // the other processes do not count.
      const bool keep = abort_reason == nullptr;
      failed += keep;
      it = keep ? std::next(it) : group.waiting.erase(it);
    }
    for (auto it = group.waiting.begin(); failed > kFailedInstances; --failed) {
      while (it->failure.ok()) ++it;
      it = group.waiting.erase(it);
    }
  }
  watched_ = waiting;
  return waiting;
}

}  // namespace jaxring
