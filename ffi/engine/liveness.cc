// Heartbeats and failure reports between the processes of a job, on their control connections.
#include <algorithm>
#include <iterator>

#include "engine/engine.h"
#include "engine/heartbeats/behind.h"
#include "engine/site.h"

namespace jaxring {
namespace {

using std::chrono::milliseconds;

// A stopped process reads nothing, so heartbeats to a silent one are rare and do not fill its socket buffer.
constexpr auto kSilentLong = milliseconds(5000), kHeartbeatToSilentEvery = milliseconds(10000);
constexpr size_t kKnownFailures = 1024, kRepeatedFailures = 64;

ControlFrame Failed(uint64_t key, const Status& status) {
  ControlFrame frame;
  frame.kind = ControlFrame::Kind::kFailed;
  frame.key = key;
  frame.code = status.code;
  frame.text = status.message;
  return frame;
}

}  // namespace

void Engine::TellAll(const ControlFrame& frame, int except) {
  const std::string bytes = EncodeFrame(frame);
  // A process's last frame goes out on each of its connections, before their ends. So does a failure: on one connection
  // alone it could be read after the goodbye on another, and the peer would then blame the end of this process.
  const bool last = frame.kind == ControlFrame::Kind::kGoodbye || frame.kind == ControlFrame::Kind::kLeaving;
  const bool everywhere = last || frame.kind == ControlFrame::Kind::kFailed;
  std::lock_guard lock(peers_mutex_);
  if (last && !frame.text.empty()) farewell_ = bytes;
  for (auto& [process, peer] : peers_) {
    if (process == except) continue;
    if (!everywhere) peer.Send(bytes);
    for (size_t i = 0; everywhere && i < peer.controls.size(); ++i) peer.controls[i]->Send(bytes);
  }
}

bool Engine::RecordFailure(uint64_t key, const Status& status) {
  RecordTrouble();
  std::lock_guard lock(mutex_);
  if (!known_failures_.emplace(key, status).second) return false;
  known_failure_order_.push_back(key);
  if (known_failure_order_.size() > kKnownFailures) {
    known_failures_.erase(known_failure_order_.front());
    known_failure_order_.pop_front();
  }
  for (auto& op : active_) {
    if (op->key() == key) op->Fail(status);
  }
  return true;
}

std::optional<Status> Engine::FailureFor(uint64_t key) {
  std::lock_guard lock(mutex_);
  auto it = known_failures_.find(key);
  return it == known_failures_.end() ? std::nullopt : std::optional(it->second);
}

void Engine::BroadcastFailure(uint64_t key, const Status& status, int own) {
  ForwardFailure(key, Status::Error(status.code, status.message + " (Process " + std::to_string(own) +
                                                     " was the first to see it.)"));
}

void Engine::ForwardFailure(uint64_t key, const Status& failure) {
  if (RecordFailure(key, failure)) TellAll(Failed(key, failure), -1);
}

std::vector<ControlFrame> Engine::LastFailures() {
  std::lock_guard lock(mutex_);
  std::vector<ControlFrame> frames;
  for (size_t i = known_failure_order_.size() - std::min(kRepeatedFailures, known_failure_order_.size());
       i < known_failure_order_.size(); ++i) {
    frames.push_back(Failed(known_failure_order_[i], known_failures_.at(known_failure_order_[i])));
  }
  return frames;
}

void Engine::OnFrame(int process, const ControlFrame& frame) {
  {
    std::lock_guard lock(peers_mutex_);
    Peer& peer = peers_[process];
    peer.heard_at = Clock::now();
    if (frame.kind == ControlFrame::Kind::kAlive) {
      peer.doing = frame.activities;
      peer.launches = frame.launches;
      peer.behind = frame.behind;
      peer.said_at = peer.heard_at;
      OnHeartbeat(process, frame);
    }
    if (frame.kind == ControlFrame::Kind::kGoodbye && !peer.left) {
      peer.left = true;
      peer.left_at = peer.heard_at;
      peer.how = frame.text;
    }
  }
  switch (frame.kind) {
    case ControlFrame::Kind::kAlive:
      break;
    case ControlFrame::Kind::kGoodbye:
      any_left_.store(true, std::memory_order_release);
      CloseLeft(Clock::now());
      break;
    case ControlFrame::Kind::kFailed:
      if (!RecordFailure(frame.key, Status::Error(frame.code, frame.text))) break;
      doorbell_->NotifyAll();
      TellAll(frame, process);
      break;
    case ControlFrame::Kind::kGone:
      RecordCrash(frame.process, frame.text, frame.ending, frame.witness < 0 ? process : frame.witness);
      break;
    case ControlFrame::Kind::kLeaving:
      RecordCrash(process, frame.text, frame.ending);
      break;
    case ControlFrame::Kind::kMessage:
      python_.AddControlMessage({process, frame.text});
      break;
    case ControlFrame::Kind::kHalted:
      RecordTrouble();
      Halt(frame.text, true, process);
      break;
  }
}

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

void Engine::SendHeartbeats(Clock::time_point now) {
  auto due = [now](const Peer& peer) {
    if (peer.controls.empty() || peer.left) return false;
    return now - peer.heartbeat_sent_at >=
           (now - peer.heard_at > kSilentLong ? kHeartbeatToSilentEvery : kHeartbeatEvery);
  };
  {
    std::lock_guard lock(peers_mutex_);
    if (std::none_of(peers_.begin(), peers_.end(), [&](const auto& entry) { return due(entry.second); })) return;
  }
  ControlFrame alive = Heartbeat(now);
  alive.sample = resources_.last();
  uint64_t version;
  for (auto& op : Active(&version)) {
    if (now - op->begun() <= kHeartbeatEvery || !alive.behind.empty()) continue;
    std::lock_guard lock(peers_mutex_);
    alive.behind = FindAllBehind(peers_, *op, recorder_, now);
  }
  std::lock_guard lock(peers_mutex_);
  for (auto& [process, peer] : peers_) {
    if (!due(peer)) continue;
    peer.heartbeat_sent_at = now;
    const auto sent = Clock::now();
    alive.times = {Nanoseconds(sent), peer.their_sent_ns,
                   peer.their_sent_ns == 0 ? 0 : Nanoseconds(sent - peer.said_at)};
    peer.SendHeartbeat(EncodeFrame(alive));
  }
}

}  // namespace jaxring
