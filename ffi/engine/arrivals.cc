// What heartbeats say of those that hold a job up: how the clocks of two processes differ, when each launched the same
// operation, and what each spends CPU time and connections on. Python judges it (jaxring/_stragglers.py).
#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace jaxring {
namespace {

constexpr size_t kMaxSharedLaunches = 512, kMaxSamples = 64;

}  // namespace

void Engine::SampleResources(Clock::time_point now) {
  if (!HasPeers()) return;
  const std::optional<ResourceSample> sample = resources_.Sample(now, links_, [this] { return paths_.Count(); });
  if (!sample) return;
  recorder_.Keep(*sample);
  std::lock_guard lock(peers_mutex_);
  own_samples_.push_back(*sample);
  if (own_samples_.size() > kMaxSamples) own_samples_.pop_front();
}

void Engine::OnHeartbeat(int process, const ControlFrame& frame) {
  Peer& peer = peers_[process];
  const int64_t here = Nanoseconds(peer.said_at);
  peer.their_sent_ns = frame.times.sent;
  peer.clock.Compare(frame.times, here);
  // With each heartbeat, because the error grows while there is no better comparison.
  if (const ClockOffset clock = peer.clock.At(here); clock.error_ns >= 0) recorder_.Keep(process, clock);
  if (frame.sample.at_ns != 0 && (peer.samples.empty() || peer.samples.back().at_ns < frame.sample.at_ns)) {
    peer.samples.push_back(frame.sample);
    if (peer.samples.size() > kMaxSamples) peer.samples.pop_front();
  }
  for (const LaunchTime& theirs : frame.launches) {
    // While a launch is among the last ones of its process, at most twice as many are heard of.
    const size_t recent = std::min(peer.shared_launches.size(), 2 * ControlFrame::kMaxLaunches);
    const bool heard = std::any_of(
        peer.shared_launches.rbegin(), std::next(peer.shared_launches.rbegin(), static_cast<ptrdiff_t>(recent)),
        [&](const SharedLaunch& launch) {
          return launch.theirs.key == theirs.key && launch.theirs.sequence == theirs.sequence;
        });
    if (heard) continue;
    const auto own = recorder_.FindLaunch(theirs.key, theirs.sequence);
    if (!own) continue;
    peer.shared_launches.push_back({own->second, own->first, theirs});
    if (peer.shared_launches.size() > kMaxSharedLaunches) peer.shared_launches.pop_front();
  }
}

std::vector<Arrivals> Engine::TakeArrivals() {
  std::vector<Arrivals> found(1);
  found.front().process = -1;
  std::lock_guard lock(peers_mutex_);
  const int64_t now = Nanoseconds(Clock::now());
  found.front().samples.assign(own_samples_.begin(), own_samples_.end());
  own_samples_.clear();
  for (auto& [process, peer] : peers_) {
    found.push_back({process,
                     peer.clock.At(now),
                     {peer.shared_launches.begin(), peer.shared_launches.end()},
                     {peer.samples.begin(), peer.samples.end()}});
    peer.shared_launches.clear();
    peer.samples.clear();
  }
  return found;
}

}  // namespace jaxring
