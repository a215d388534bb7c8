#include "engine/heartbeats/wait_reporter.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "engine/heartbeats/behind.h"

namespace jaxring {
namespace {

using std::chrono::milliseconds;

// A process that has been silent for longer is not running.
constexpr auto kSilent = milliseconds(1500);
// If the awaited process itself waits in the same operation, this process reports the deadline so much later. The other
// one is nearer to the cause and reports it first.
constexpr auto kReportGrace = milliseconds(1000);

std::string Seconds(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

std::string WaitReporter::DescribePeer(int process, const std::string& name, uint64_t key) const {
  ConnectedPeer peer;
  peers_->Look([&](const PeerMonitor::Peers& peers) {
    if (auto it = peers.find(process); it != peers.end()) peer = it->second;
  });
  if (peer.controls.empty()) {
    return name +
           " has made no connection to this process yet: it has not reached a collective that both take part in, or "
           "cannot reach this process.";
  }
  if (peer.left) return name + ": " + peer.DepartureReason() + ".";
  const auto now = Clock::now();
  const auto silent = now - peer.frame_at;
  const bool said = peer.said_at != Clock::time_point{};
  if (silent > kSilent) {
    std::string text =
        name + " has not moved for " + Seconds(silent) + ": it is stopped, swapped out, starved or cut off.";
    if (said) text.append(" It was last seen ").append(Doing(peer.doing, {})).append(".");
    return text;
  }
  if (!said) return name + " is alive and has not said yet what it does.";
  std::string text = name + " is alive, and " + Doing(peer.doing, now - peer.said_at) + ".";
  bool same = false, unknown = false, runs = false;
  for (const Activity& activity : peer.doing) {
    runs |= activity.running;
    same |= activity.running && activity.key == key;
    // What is still planned has no key yet, and may be what is waited for.
    unknown |= activity.running && activity.key != 0 && activity.key != key && recorder_->NumberOf(activity.key) == 0;
  }
  if (!runs) return text + " It computes, waits in Python, or runs another program than this process.";
  if (!same && unknown) {
    text +=
        " This process has not begun that: the processes run different programs, or collectives in another order or "
        "of other shapes.";
  }
  return text;
}

bool WaitReporter::WaitsTogether(int process, const Operation& op) const {
  bool together = false;
  peers_->Look([&](const PeerMonitor::Peers& peers) {
    const auto it = peers.find(process);
    if (it == peers.end() || it->second.left || Clock::now() - it->second.frame_at > kSilent) return;
    const std::vector<Activity>& doing = it->second.doing;
    // A heartbeat from before this operation, or just after its begin, says nothing about it.
    together =
        it->second.said_at < op.begun() + kHeartbeatEvery ||
        std::any_of(doing.begin(), doing.end(), [&op](const Activity& a) { return a.running && a.key == op.key(); });
  });
  return together;
}

std::string WaitReporter::DescribeWaiting(Operation& op, std::map<int, int>* waited_for) const {
  const std::string waits = op.DescribeWaits(waited_for);
  std::string text = (waits.empty() ? "no lane reports what it waits for" : waits) + ".";
  constexpr size_t kDescribed = 4;
  size_t described = 0;
  for (const auto& [process, rank] : *waited_for) {
    if (process == op.plan().group.process || ++described > kDescribed) continue;
    text.append(" ").append(DescribePeer(process, op.plan().group.ranks[rank].name, op.key()));
  }
  return text;
}

bool WaitReporter::AllWaitTogether(const std::map<int, int>& waited_for, const Operation& op) const {
  return std::all_of(waited_for.begin(), waited_for.end(), [&](const auto& entry) {
    return entry.first == op.plan().group.process || WaitsTogether(entry.first, op);
  });
}

std::vector<Behind> WaitReporter::AllBehind(const Operation& op, Clock::time_point now) const {
  std::vector<Behind> behind;
  peers_->Look([&](const PeerMonitor::Peers& peers) { behind = FindAllBehind(peers, op, *recorder_, now); });
  return behind;
}

std::optional<Status> WaitReporter::Late(Operation& op, Clock::time_point now) const {
  std::map<int, int> waited_for;
  const std::string waits = DescribeWaiting(op, &waited_for);
  if (AllWaitTogether(waited_for, op) && !op.plan().alone() && now < op.deadline() + kReportGrace) return std::nullopt;
  const bool slow = std::any_of(waited_for.begin(), waited_for.end(), [&](const auto& entry) {
    return entry.first != op.plan().group.process && !peers_->HasLeft(entry.first);
  });
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g", op.plan().timeout_s);
  return Status::Error(
      Code::kDeadlineExceeded,
      op.What() + ": not finished " + limit + " s after it began: " + waits +
          DescribeBehind(AllBehind(op, now), op, now) +
          (slow || waited_for.empty() ? " Raise timeout= or JAXRING_TIMEOUT if the peer is only slow." : ""));
}

}  // namespace jaxring
