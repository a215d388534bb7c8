// Processes that have ended in good order. Messages that they sent are still received; operations that wait for more of
// them fail.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace jaxring {
namespace {

// After this time since a process's goodbye, none of its messages can still arrive: links that were being set up are in
// service by then, and devices have delivered.
constexpr auto kLastMessages = std::chrono::seconds(2);

}  // namespace

bool Engine::HasLeft(int process) {
  std::lock_guard lock(peers_mutex_);
  const auto it = peers_.find(process);
  return it != peers_.end() && it->second.left;
}

PeerEnd Engine::EndOf(int process) {
  PeerEnd end;
  end.last_seen = LastSeen(process);
  {
    std::lock_guard lock(mutex_);
    if (const auto it = crashes_.find(process); it != crashes_.end()) {
      end.reason = it->second.reason;
      end.ending = it->second.ending;
      return end;
    }
  }
  std::lock_guard lock(peers_mutex_);
  if (const auto it = peers_.find(process); it != peers_.end() && it->second.left) {
    end.reason = it->second.Farewell();
    end.ending = Ending::kGoodbye;
  }
  return end;
}

Status Engine::Loss(const Operation& op, int self, int peer, const LinkEnd& link) {
  // A process that fails and then ends reports both; the failure is the cause. RecordFailure has not failed this
  // operation if it runs on its launching thread, since it is not in active_ then.
  if (auto failure = FailureFor(op.key())) return *std::move(failure);
  PeerEnd known = EndOf(op.plan().ranks[peer].process);
  // The link's own end is the cause only if the peer reported nothing before.
  if (known.reason.empty()) {
    known.reason = link.reason;
    known.ending = link.ending;
  }
  return LostPeer(op, self, peer, known);
}

std::set<int> Engine::CloseLeft(Clock::time_point now) {
  std::set<int> settled;
  if (!any_left_.load(std::memory_order_acquire)) return settled;
  std::vector<std::pair<int, std::string>> left;
  {
    std::lock_guard lock(peers_mutex_);
    for (const auto& [process, peer] : peers_) {
      // A peer that left for a new epoch has halted this process, which drops all links later.
      if (!peer.left || peer.how.empty()) continue;
      left.emplace_back(process, peer.Farewell());
      if (now - peer.left_at > kLastMessages) settled.insert(process);
    }
  }
  for (const auto& [process, reason] : left) links_.CloseLeft(process, reason);
  return settled;
}

void Engine::FailLeft(Operation& op, const std::set<int>& left) {
  if (op.failed() || op.plan().held_back()) return;
  for (const Operation::Wait& wait : op.Waits()) {
    const int process = op.plan().ranks[wait.peer].process;
    if (left.count(process) == 0 || links_.MayBring(process)) continue;
    op.Fail(Loss(op, wait.self, wait.peer, {}));
    return;
  }
}

bool Engine::MayDoWithout(Operation& op, int process) const {
  if (links_.MayBring(process)) return true;
  const std::vector<Operation::Wait> waits = op.Waits();
  return std::none_of(waits.begin(), waits.end(),
                      [&](const Operation::Wait& wait) { return op.plan().ranks[wait.peer].process == process; });
}

}  // namespace jaxring
