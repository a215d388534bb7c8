// What this process says of itself with its heartbeats: the operations that it is in, and its latest launches.
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/engine.h"
#include "engine/heartbeats/behind.h"
#include "engine/site.h"

namespace jaxring {

std::vector<Activity> Engine::Activities(Clock::time_point now) {
  std::vector<Activity> activities, not_launched;
  uint64_t version;
  for (auto& op : Active(&version)) activities.push_back({op->key(), true, AgeMs(now - op->begun()), op->What()});
  std::vector<std::weak_ptr<Site>> watched;
  {
    std::lock_guard lock(mutex_);
    watched = watched_;
  }
  for (auto& weak : watched) {
    if (auto site = weak.lock()) site->Describe(now, &not_launched);
  }
  // Oldest first: the other processes may be waiting for it. One that is not launched has a place, however young it is,
  // because a list without any tells the other processes that there are none (HasBegun).
  auto keep_oldest = [&activities](size_t count) {
    std::stable_sort(activities.begin(), activities.end(),
                     [](const Activity& a, const Activity& b) { return a.age_ms > b.age_ms; });
    if (activities.size() > count) activities.resize(count);
  };
  if (!not_launched.empty()) keep_oldest(ControlFrame::kMaxActivities - 1);
  activities.insert(activities.end(), std::make_move_iterator(not_launched.begin()),
                    std::make_move_iterator(not_launched.end()));
  keep_oldest(ControlFrame::kMaxActivities);
  if (!activities.empty()) return activities;
  if (auto last = recorder_.Last()) {
    const bool running = last->state == OperationState::kRunning;
    activities.push_back({last->key, running, AgeMs(now - (running ? last->launched : last->ended)),
                          last->what + ", execution " + std::to_string(last->sequence)});
  }
  return activities;
}

ControlFrame Engine::Heartbeat(Clock::time_point now) {
  ControlFrame alive;
  // Before the launches: an operation that is launched meanwhile is in one of the two at least.
  alive.activities = Activities(now);
  alive.launches = recorder_.LastLaunches(ControlFrame::kMaxLaunches);
  return alive;
}

std::vector<Behind> Engine::AllBehind(const Operation& op, Clock::time_point now) {
  std::vector<Behind> behind;
  network_.peers().Look([&](const PeerMonitor::Peers& peers) { behind = FindAllBehind(peers, op, recorder_, now); });
  return behind;
}

void Engine::SendHeartbeats(Clock::time_point now) {
  if (!network_.peers().HeartbeatIsDue(now)) return;
  ControlFrame alive = Heartbeat(now);
  alive.sample = resources_.last();
  uint64_t version;
  for (auto& op : Active(&version)) {
    if (now - op->begun() <= kHeartbeatEvery || !alive.behind.empty()) continue;
    alive.behind = AllBehind(*op, now);
  }
  network_.peers().SendHeartbeats(std::move(alive), now);
}

}  // namespace jaxring
