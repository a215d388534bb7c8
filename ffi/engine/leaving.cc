// Processes that have ended in good order: what they sent is still taken, and what waits for more of them fails.
#include <utility>

#include "engine/engine.h"

namespace jaxring {
namespace {

// How long after a process's goodbye nothing more is expected of it where that cannot be known: a link in the making
// has come into service by then, and a device has delivered what it had.
constexpr auto kLastMessages = std::chrono::seconds(2);

}  // namespace

bool Engine::HasLeft(int process) {
  std::lock_guard lock(peers_mutex_);
  const auto it = peers_.find(process);
  return it != peers_.end() && it->second.left;
}

PeerEnd Engine::Known(int process) {
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
  // A process that fails and then ends says both. An operation on the thread that launched it is not among the active
  // ones, which RecordFailure() fails.
  if (auto told = FailureFor(op.key())) return *std::move(told);
  PeerEnd known = Known(op.plan().ranks[peer].process);
  // How a link ends may only follow from what its peer has said before.
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
      // Who leaves an epoch halts it, and its links are forgotten.
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

}  // namespace jaxring
