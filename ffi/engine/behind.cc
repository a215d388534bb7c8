// Which processes have not begun an operation that others wait in. Each process sees it of those that it is connected
// with, and passes on what it hears of others, so that the one that reports a deadline can name all of them.
#include <algorithm>
#include <cstdio>

#include "engine/engine.h"

namespace jaxring {
namespace {

using std::chrono::milliseconds;

// What was seen longer ago does not count: the process may have begun the operation since. So long a report takes from
// process to process at most.
constexpr uint32_t kSeenMs = 10000;
constexpr size_t kNamed = 4;

uint32_t Older(uint32_t age_ms, int64_t since_ms) {
  return static_cast<uint32_t>(std::min<int64_t>(age_ms + since_ms, UINT32_MAX));
}

bool IsIn(const std::vector<Activity>& doing, uint64_t key) {
  return std::any_of(doing.begin(), doing.end(), [key](const Activity& a) { return a.running && a.key == key; });
}

}  // namespace

std::vector<Behind> Engine::FindBehind(const Operation& op, Clock::time_point now) {
  const uint64_t number = recorder_.NumberOf(op.key());
  if (number == 0) return {};
  std::map<int, Behind> found;
  std::lock_guard lock(peers_mutex_);
  auto takes_part = [&op](int process) {
    const auto& ranks = op.plan().ranks;
    return std::any_of(ranks.begin(), ranks.end(), [process](const RankPlace& r) { return r.process == process; });
  };
  auto connected = [this](int process) {
    const auto it = peers_.find(process);
    return it != peers_.end() && !it->second.controls.empty();
  };
  for (const auto& [process, peer] : peers_) {
    if (peer.said_at <= op.begun() || peer.controls.empty()) continue;
    const auto since = std::chrono::duration_cast<milliseconds>(now - peer.said_at).count();
    for (Behind behind : peer.behind) {
      // What a connected process does is known better from itself.
      if (behind.key != op.key() || connected(behind.process) || !takes_part(behind.process)) continue;
      if (behind.process == op.plan().process || behind.seen_ms + since > kSeenMs) continue;
      behind.seen_ms += static_cast<uint32_t>(since);
      behind.last.age_ms = Older(behind.last.age_ms, since);
      const auto [it, news] = found.emplace(behind.process, behind);
      if (!news && behind.seen_ms < it->second.seen_ms) it->second = behind;
    }
    if (peer.left || IsIn(peer.doing, op.key()) || !takes_part(process)) continue;
    const bool earlier = std::all_of(peer.doing.begin(), peer.doing.end(), [&](const Activity& activity) {
      // An operation that is not recorded here may be a later one, or one that only others take part in.
      const uint64_t known = activity.key == 0 ? 0 : recorder_.NumberOf(activity.key);
      return known != 0 && known < number;
    });
    if (!earlier) continue;
    Behind behind{op.key(), process, 0, {}};
    if (!peer.doing.empty()) {
      behind.last = peer.doing.front();
      behind.last.age_ms = Older(behind.last.age_ms, since);
    }
    found[process] = behind;
  }
  std::vector<Behind> all;
  for (auto& [process, behind] : found) all.push_back(std::move(behind));
  return all;
}

std::string Engine::DescribeBehind(const Operation& op, Clock::time_point now) {
  const std::vector<Behind> all = FindBehind(op, now);
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
