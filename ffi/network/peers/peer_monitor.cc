#include "network/peers/peer_monitor.h"

#include <algorithm>
#include <iterator>

namespace jaxring {
namespace {

using std::chrono::milliseconds;

// A stopped process reads nothing, so heartbeats to a silent one are rare and do not fill its socket buffer.
constexpr auto kSilentLong = milliseconds(5000), kHeartbeatToSilentEvery = milliseconds(10000);
constexpr size_t kMaxSharedLaunches = 512;

bool IsLast(const ControlFrame& frame) {
  return frame.kind == ControlFrame::Kind::kGoodbye || frame.kind == ControlFrame::Kind::kLeaving;
}

std::string LastSeen(const ConnectedPeer& peer) {
  if (peer.said_at == PeerMonitor::Time{}) return "";
  return std::string("It was last seen ").append(Doing(peer.doing, {})).append(". ");
}

// Whether it has ended: a peer that has left for the next epoch lives in that.
bool HasEnded(const ConnectedPeer& peer) { return peer.left && !peer.how.empty(); }

}  // namespace

void PeerMonitor::Add(int process, const std::shared_ptr<FrameSender>& link, bool dialled) {
  MutexLock lock(mutex_);
  ConnectedPeer& peer = peers_[process];
  peer.frame_at = Clock::now();
  peer.controls.push_back(link);
  if (dialled) peer.dialled = link;
}

void PeerMonitor::SendMissed(int process, FrameSender& link, const std::vector<ControlFrame>& failures) {
  {
    MutexLock lock(mutex_);
    if (!last_frame_.empty()) link.Send(last_frame_, false);
  }
  for (const ControlFrame& failed : failures) link.Send(EncodeFrame(failed), false);
  std::vector<std::string> unsent;
  MutexLock lock(mutex_);
  unsent.swap(peers_[process].unsent);
  for (const std::string& message : unsent) link.Send(message, false);
}

void PeerMonitor::OnFrame(int process, const ControlFrame& frame) {
  MutexLock lock(mutex_);
  ConnectedPeer& peer = peers_[process];
  peer.frame_at = Clock::now();
  if (frame.kind == ControlFrame::Kind::kAlive) {
    peer.doing = frame.activities;
    peer.launches = frame.launches;
    peer.behind = frame.behind;
    peer.said_at = peer.frame_at;
    Compare(process, peer, frame);
  }
  if (frame.kind == ControlFrame::Kind::kGoodbye && !peer.left) {
    peer.left = true;
    peer.left_at = peer.frame_at;
    peer.how = frame.text;
  }
}

void PeerMonitor::Compare(int process, ConnectedPeer& peer, const ControlFrame& frame) {
  const int64_t here = Nanoseconds(peer.said_at);
  peer.their_sent_ns = frame.times.sent;
  peer.clock.Compare(frame.times, here);
  // With each heartbeat, because the error grows while there is no better comparison.
  if (const ClockOffset clock = peer.clock.At(here); clock.error_ns >= 0) client_->OnClock(process, clock);
  if (frame.sample.at_ns != 0 && (peer.samples.empty() || peer.samples.back().at_ns < frame.sample.at_ns)) {
    peer.samples.push_back(frame.sample);
    if (peer.samples.size() > kMaxSamples) peer.samples.pop_front();
  }
  for (const LaunchTime& theirs : frame.launches) {
    // While a launch is among the last ones of its process, at most twice as many arrive.
    const size_t recent = std::min(peer.shared_launches.size(), 2 * ControlFrame::kMaxLaunches);
    const bool known = std::any_of(
        peer.shared_launches.rbegin(), std::next(peer.shared_launches.rbegin(), static_cast<ptrdiff_t>(recent)),
        [&](const SharedLaunch& launch) {
          return launch.theirs.key == theirs.key && launch.theirs.sequence == theirs.sequence;
        });
    if (known) continue;
    const auto own = client_->FindLaunch(theirs.key, theirs.sequence);
    if (!own) continue;
    peer.shared_launches.push_back({own->second, own->first, theirs});
    if (peer.shared_launches.size() > kMaxSharedLaunches) peer.shared_launches.pop_front();
  }
}

void PeerMonitor::TellAll(const ControlFrame& frame, int except) {
  const std::string bytes = EncodeFrame(frame);
  // A process's last frame goes out on each of its connections, before their ends. So does a failure: on one connection
  // alone it could be read after the goodbye on another, and the peer would then blame the end of this process.
  const bool everywhere = IsLast(frame) || frame.kind == ControlFrame::Kind::kFailed;
  MutexLock lock(mutex_);
  if (IsLast(frame) && !frame.text.empty()) last_frame_ = bytes;
  for (auto& [process, peer] : peers_) {
    if (process == except) continue;
    if (!everywhere) peer.Send(bytes);
    for (size_t i = 0; everywhere && i < peer.controls.size(); ++i) peer.controls[i]->Send(bytes, false);
  }
}

void PeerMonitor::SendMessage(int process, const std::string& text) {
  ControlFrame frame;
  frame.kind = ControlFrame::Kind::kMessage;
  frame.text = text;
  MutexLock lock(mutex_);
  ConnectedPeer& peer = peers_[process];
  if (peer.controls.empty()) {
    peer.unsent.push_back(EncodeFrame(frame));
  } else {
    peer.controls.front()->Send(EncodeFrame(frame), false);
  }
}

void PeerMonitor::SayLeaving(const std::string& why, Ending ending) {
  ControlFrame leaving;
  leaving.kind = ControlFrame::Kind::kLeaving;
  leaving.ending = ending;
  leaving.text = why;
  TellAll(leaving, -1);
}

bool PeerMonitor::IsDue(const ConnectedPeer& peer, Time now) {
  if (peer.controls.empty() || peer.left) return false;
  return now - peer.heartbeat_sent_at >=
         (now - peer.frame_at > kSilentLong ? kHeartbeatToSilentEvery : kHeartbeatEvery);
}

bool PeerMonitor::HeartbeatIsDue(Time now) {
  MutexLock lock(mutex_);
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) { return IsDue(entry.second, now); });
}

void PeerMonitor::SendHeartbeats(ControlFrame alive, Time now) {
  MutexLock lock(mutex_);
  for (auto& [process, peer] : peers_) {
    if (!IsDue(peer, now)) continue;
    peer.heartbeat_sent_at = now;
    const auto sent = Clock::now();
    alive.times = {Nanoseconds(sent), peer.their_sent_ns,
                   peer.their_sent_ns == 0 ? 0 : Nanoseconds(sent - peer.said_at)};
    peer.SendHeartbeat(EncodeFrame(alive));
  }
}

std::pair<Crash, bool> PeerMonitor::RecordCrash(int process, const std::string& reason, Ending ending, int witness) {
  Crash crash{reason, ending, Clock::now(), witness};
  MutexLock lock(mutex_);
  const auto [it, news] = crashes_.try_emplace(process, crash);
  if (!news && witness < 0) it->second.witness = -1;
  return {it->second, news};
}

std::map<int, Crash> PeerMonitor::Crashes() {
  MutexLock lock(mutex_);
  return crashes_;
}

bool PeerMonitor::Crashed(int process) {
  MutexLock lock(mutex_);
  return crashes_.count(process) != 0;
}

bool PeerMonitor::HasLeft(int process) {
  MutexLock lock(mutex_);
  const auto it = peers_.find(process);
  return it != peers_.end() && it->second.left;
}

std::vector<PeerMonitor::Departure> PeerMonitor::Departures() {
  MutexLock lock(mutex_);
  std::vector<Departure> departures;
  for (const auto& [process, peer] : peers_) {
    if (HasEnded(peer)) departures.push_back({process, peer.DepartureReason(), peer.left_at});
  }
  return departures;
}

PeerEnd PeerMonitor::EndOf(int process) {
  PeerEnd end;
  MutexLock lock(mutex_);
  const auto peer = peers_.find(process);
  if (peer != peers_.end()) end.last_seen = LastSeen(peer->second);
  if (const auto crash = crashes_.find(process); crash != crashes_.end()) {
    end.reason = crash->second.reason;
    end.ending = crash->second.ending;
  } else if (peer != peers_.end() && peer->second.left) {
    end.reason = peer->second.DepartureReason();
    end.ending = Ending::kGoodbye;
  }
  return end;
}

std::vector<int> PeerMonitor::Gone() {
  std::vector<int> gone;
  MutexLock lock(mutex_);
  for (const auto& entry : crashes_) gone.push_back(entry.first);
  for (const auto& [process, peer] : peers_) {
    if (HasEnded(peer) && crashes_.count(process) == 0) gone.push_back(process);
  }
  return gone;
}

bool PeerMonitor::HasPeers() {
  MutexLock lock(mutex_);
  return !peers_.empty();
}

void PeerMonitor::Look(const std::function<void(const Peers& peers)>& look) {
  MutexLock lock(mutex_);
  look(peers_);
}

void PeerMonitor::KeepOwn(const ResourceSample& sample) {
  MutexLock lock(mutex_);
  own_samples_.push_back(sample);
  if (own_samples_.size() > kMaxSamples) own_samples_.pop_front();
}

std::vector<Arrivals> PeerMonitor::TakeArrivals() {
  std::vector<Arrivals> found(1);
  found.front().process = -1;
  MutexLock lock(mutex_);
  found.front().samples.assign(own_samples_.begin(), own_samples_.end());
  own_samples_.clear();
  const int64_t now = Nanoseconds(Clock::now());
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

void PeerMonitor::Clear() {
  Peers dropped;  // destroyed when the lock is free: a connection tells Paths of its end, under another mutex
  MutexLock lock(mutex_);
  dropped.swap(peers_);
  crashes_.clear();
}

}  // namespace jaxring
