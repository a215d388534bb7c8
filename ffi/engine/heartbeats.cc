// What this process says of itself with its heartbeats: the operations that it is in, its latest launches, and what it
// spends. With what the others say of themselves Python finds those that hold a job up (jaxring/_stragglers.py).
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/engine.h"

namespace jaxring {

std::vector<Activity> Engine::Activities(Clock::time_point now) {
  std::vector<Activity> activities;
  for (auto& op : active_.Get()) activities.push_back({op->key(), true, AgeMs(now - op->begun()), op->What()});
  std::vector<Activity> not_launched = sites_.Waiting(now);
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

void Engine::SendHeartbeats(Clock::time_point now) {
  if (!options_.stepped && network_->peers().HasPeers()) {
    const auto sample = resources_.Sample(now, network_->links(), [this] { return network_->CountPaths(); });
    if (sample) {
      recorder_.Keep(*sample);
      network_->peers().KeepOwn(*sample);
    }
  }
  if (!network_->peers().HeartbeatIsDue(now)) return;
  ControlFrame alive = Heartbeat(now);
  alive.sample = resources_.last();
  for (auto& op : active_.Get()) {
    if (now - op->begun() <= kHeartbeatEvery || !alive.behind.empty()) continue;
    alive.behind = reporter_.AllBehind(*op, now);
  }
  network_->peers().SendHeartbeats(std::move(alive), now);
}

}  // namespace jaxring
