// What this process and the heartbeats of others say of those that hold a job up: how the clocks of two processes
// differ, when each launched the same operation, and what each spends CPU time and connections on. Python judges it
// (jaxring/_stragglers.py).
#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace jaxring {
void Engine::SampleResources(Clock::time_point now) {
  if (!network_.peers().HasPeers()) return;
  const std::optional<ResourceSample> sample =
      resources_.Sample(now, network_.links(), [this] { return network_.paths().Count(); });
  if (!sample) return;
  recorder_.Keep(*sample);
  std::lock_guard lock(mutex_);
  own_samples_.push_back(*sample);
  if (own_samples_.size() > kMaxSamples) own_samples_.pop_front();
}

std::vector<Arrivals> Engine::TakeArrivals() {
  std::vector<Arrivals> found(1);
  found.front().process = -1;
  {
    std::lock_guard lock(mutex_);
    found.front().samples.assign(own_samples_.begin(), own_samples_.end());
    own_samples_.clear();
  }
  std::vector<Arrivals> peers = network_.peers().TakeArrivals();
  std::move(peers.begin(), peers.end(), std::back_inserter(found));
  return found;
}

}  // namespace jaxring
