// How operations fail when a process that takes part in them has ended or reports a failure. Messages that a process
// sent before it ended are still received; operations that wait for more of it fail.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace jaxring {
namespace {

// What a process sent before it died may suffice: operations get this time to receive it.
constexpr auto kCrashGrace = std::chrono::milliseconds(100);
// Links say when they have brought everything of a process that reported an error between operations, unless it dies
// before it has told them to.
constexpr auto kIdleGrace = std::chrono::seconds(2);

std::string NameOf(const Plan& plan, int process) {
  auto rank = std::find_if(plan.group.ranks.begin(), plan.group.ranks.end(),
                           [&](const RankPlace& r) { return r.process == process; });
  return rank == plan.group.ranks.end() ? "process " + std::to_string(process) : rank->name;
}

}  // namespace

Status Engine::Loss(const Operation& op, int self, int peer, const LinkEnd& link) {
  // A process that fails and then ends reports both; the failure is the cause. OnFailure has not failed this
  // operation if it runs on its launching thread, since it is not among the active ones then.
  if (auto failure = network_->failures().Find(op.key())) return *std::move(failure);
  PeerEnd known = network_->peers().EndOf(op.plan().group.ranks[peer].process);
  // The link's own end is the cause only if the peer reported nothing before.
  if (known.reason.empty()) {
    known.reason = link.reason;
    known.ending = link.ending;
  }
  return LostPeer(op, self, peer, known);
}

void Engine::FailCrashed(Operation& op, const std::map<int, Crash>& crashes, Clock::time_point now) {
  struct Lost {
    int process;
    std::string names;
    Crash crash;
  };
  std::vector<Lost> lost;
  for (const RankPlace& rank : op.plan().group.ranks) {
    auto it = crashes.find(rank.process);
    if (it == crashes.end() || now - it->second.seen < kCrashGrace) continue;
    if (it->second.ending == Ending::kReportedErrorIdle && now - it->second.seen < kIdleGrace &&
        MayDoWithout(op, rank.process)) {
      continue;
    }
    auto known = std::find_if(lost.begin(), lost.end(), [&](const Lost& l) { return l.process == rank.process; });
    if (known == lost.end()) {
      lost.push_back({rank.process, rank.name, it->second});
    } else {
      known->names += ", " + rank.name;
    }
  }
  if (lost.empty()) return;
  // What this process observed itself comes first: a process that is cut off reports all others as gone.
  std::stable_partition(lost.begin(), lost.end(), [](const Lost& l) { return l.crash.witness < 0; });
  std::string text = op.What() + ": lost ";
  constexpr size_t kDescribed = 4;
  for (size_t i = 0; i < std::min(lost.size(), kDescribed); ++i) {
    text.append(i == 0 ? "" : "; ").append(lost[i].names).append(": ").append(lost[i].crash.reason);
    if (lost[i].crash.witness >= 0)
      text.append(", as ").append(NameOf(op.plan(), lost[i].crash.witness)).append(" says");
  }
  if (lost.size() > kDescribed) text += "; and " + std::to_string(lost.size() - kDescribed) + " more processes";
  const Ending ending = lost.front().crash.ending;
  op.Fail(Status::Error(LostCode(ending),
                        text + ". " + network_->peers().EndOf(lost.front().process).last_seen + LostHint(ending)));
}

void Engine::FailLeft(Operation& op, const std::set<int>& left) {
  if (op.failed() || op.plan().held_back()) return;
  for (const Operation::Wait& wait : op.Waits()) {
    const int process = op.plan().group.ranks[wait.peer].process;
    if (left.count(process) == 0 || network_->links().MayBring(process)) continue;
    op.Fail(Loss(op, wait.self, wait.peer, {}));
    return;
  }
}

bool Engine::MayDoWithout(Operation& op, int process) {
  if (network_->links().MayBring(process)) return true;
  const std::vector<Operation::Wait> waits = op.Waits();
  return std::none_of(waits.begin(), waits.end(),
                      [&](const Operation::Wait& wait) { return op.plan().group.ranks[wait.peer].process == process; });
}

void Engine::OpenLatchIfPeersLeft(ProgramLatch& latch, const std::set<int>& left) {
  for (int process : latch.Missing()) {
    if (left.count(process) != 0) Confirm(latch, process);
  }
}

}  // namespace jaxring
