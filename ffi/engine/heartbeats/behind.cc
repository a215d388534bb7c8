// Which processes have not begun an operation that others wait in. Each process sees it of those that it is connected
// with, and passes on what it learns of others, so that the one that reports a deadline can name all of them.
#include "engine/heartbeats/behind.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

namespace jaxring {
namespace {

using std::chrono::milliseconds;

constexpr size_t kNamed = 4;
// What was seen longer ago does not count: the process may have begun the operation since. A report is passed on from
// process to process for this long at most.
constexpr int64_t kSeenMs = 10000;

// The time in ms since the last heartbeat of a process arrived.
int64_t SinceSaid(const ConnectedPeer& peer, Clock::time_point now) {
  return std::chrono::duration_cast<milliseconds>(now - peer.said_at).count();
}

// The age that a heartbeat gave as `age_ms`, `since_ms` after the heartbeat's arrival.
uint32_t Older(uint32_t age_ms, int64_t since_ms) {
  return static_cast<uint32_t>(std::min<int64_t>(age_ms + since_ms, UINT32_MAX));
}

// Whether a process has begun an operation; nothing if that is not certain.
std::optional<bool> HasBegun(const ConnectedPeer& peer, uint64_t key, const Recorder& recorder) {
  const auto listed = [](const auto& list, uint64_t wanted) {
    return std::any_of(list.begin(), list.end(), [wanted](const auto& each) { return each.key == wanted; });
  };
  if (listed(peer.doing, key) || listed(peer.launches, key)) return true;
  const uint64_t number = recorder.NumberOf(key);
  if (number == 0) return std::nullopt;
  // Processes launch the operations that they share in the same order. So if the list of the last launches reaches back
  // to before this operation, it would be listed; operations of others between them say nothing. Threads that launch
  // side by side keep no order between them: a process may have ended its part of a broadcast, and a list's length of
  // another thread's operations since that came before the broadcast here. Such a process is named though it is not
  // behind.
  bool reaches_back = peer.launches.empty();
  for (const LaunchTime& launch : peer.launches) {
    const uint64_t known = recorder.NumberOf(launch.key);
    if (known > number) return std::nullopt;
    reaches_back |= known != 0;
  }
  if (!reaches_back) return std::nullopt;
  // An execution that waits for local ranks or for its plan is not launched, and may have no key yet.
  bool all_launched = true;
  for (const Activity& activity : peer.doing) {
    if (activity.key == 0 || recorder.NumberOf(activity.key) > number) return std::nullopt;
    all_launched &= listed(peer.launches, activity.key);
  }
  // A full list may have left out such an execution of this operation. Then it has another one that is not launched.
  if (peer.doing.size() == ControlFrame::kMaxActivities && !all_launched) return std::nullopt;
  return false;
}

}  // namespace

std::optional<Behind> FindBehind(int process, const ConnectedPeer& peer, uint64_t key, const Recorder& recorder,
                                 Clock::time_point now) {
  const int64_t since = SinceSaid(peer, now);
  if (peer.left || since > kSeenMs || HasBegun(peer, key, recorder).value_or(true)) return std::nullopt;
  Behind behind{key, process, static_cast<uint32_t>(since), {}};
  if (!peer.doing.empty()) {
    behind.last = peer.doing.front();
    behind.last.age_ms = Older(behind.last.age_ms, since);
  }
  return behind;
}

std::vector<Behind> FindAllBehind(const std::map<int, ConnectedPeer>& peers, const Operation& op,
                                  const Recorder& recorder, Clock::time_point now) {
  std::map<int, Behind> found;
  auto takes_part = [&op](int process) {
    const auto& ranks = op.plan().group.ranks;
    return std::any_of(ranks.begin(), ranks.end(), [process](const RankPlace& r) { return r.process == process; });
  };
  auto connected = [&peers](int process) {
    const auto it = peers.find(process);
    return it != peers.end() && !it->second.controls.empty();
  };
  for (const auto& [process, peer] : peers) {
    if (peer.said_at <= op.begun() || peer.controls.empty()) continue;
    const int64_t since = SinceSaid(peer, now);
    for (Behind behind : peer.behind) {
      // What a connected process does is known better from itself.
      if (behind.key != op.key() || connected(behind.process) || !takes_part(behind.process)) continue;
      if (behind.process == op.plan().group.process || behind.seen_ms + since > kSeenMs) continue;
      behind.seen_ms += static_cast<uint32_t>(since);
      behind.last.age_ms = Older(behind.last.age_ms, since);
      const auto [it, news] = found.emplace(behind.process, behind);
      if (!news && behind.seen_ms < it->second.seen_ms) it->second = behind;
    }
    if (!takes_part(process)) continue;
    if (auto behind = FindBehind(process, peer, op.key(), recorder, now)) found[process] = *std::move(behind);
  }
  std::vector<Behind> all;
  for (auto& [process, behind] : found) all.push_back(std::move(behind));
  return all;
}

std::string DescribeBehind(const std::vector<Behind>& all, const Operation& op, Clock::time_point now) {
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, all.size()); ++i) {
    const auto& [key, process, seen_ms, last] = all[i];
    text.append(" Process ").append(std::to_string(process)).append(" is behind: it has not begun ");
    text.append(op.What()).append(", which others have. ");
    if (last.what.empty()) {
      text.append("It has begun no operation at all.");
    } else if (last.running) {
      text.append("It is still in ").append(last.what).append(".");
    } else {
      const std::chrono::duration<double> apart = now - op.begun() - milliseconds(last.age_ms);
      char when[64];
      std::snprintf(when, sizeof when, "%.3g s %s the others began", std::abs(apart.count()),
                    apart.count() > 0 ? "after" : "before");
      text.append("Its last operation was ").append(last.what).append(", done ").append(when).append(".");
    }
  }
  if (all.size() > kNamed) {
    text.append(" ").append(std::to_string(all.size() - kNamed)).append(" more processes are behind.");
  }
  return text;
}

}  // namespace jaxring
