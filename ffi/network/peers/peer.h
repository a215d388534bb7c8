// What a process knows of another one that it has control connections with.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "network/peers/control_frames.h"
#include "network/peers/frame_sender.h"
#include "network/peers/heartbeat_data.h"
#include "network/peers/peer_clock.h"

namespace jaxring {

// How often a process sends a heartbeat to each one that it is connected with.
inline constexpr auto kHeartbeatEvery = std::chrono::milliseconds(500);

// An operation that this process and another one have launched.
struct SharedLaunch {
  uint64_t number;  // of this process's record
  LaunchTime own, theirs;
};

// What the heartbeats of a process have said since the last call of PeerMonitor::TakeArrivals.
struct Arrivals {
  int process;
  ClockOffset clock;
  std::vector<SharedLaunch> shared_launches;
  std::vector<ResourceSample> samples;
};

// How another process ended without a goodbye.
struct Crash {
  std::string reason;
  Ending ending = Ending::kNoGoodbye;
  Clock::time_point seen;
  int witness = -1;  // the process that reported it; -1: this one observed it
};

// What is known of the end of a process: the reason, empty if it is not known to have ended, and a sentence about what
// it was last doing.
struct PeerEnd {
  std::string reason;
  Ending ending = Ending::kNoGoodbye;
  std::string last_seen;
};

// "in all_reduce ..., execution 3, for 2.9 s": what a process was doing, `since` it said so.
std::string Doing(const std::vector<Activity>& activities, Clock::duration since);

// What this process knows of one that it is connected with, or has messages for.
struct ConnectedPeer {
  using Time = Clock::time_point;
  std::vector<std::shared_ptr<FrameSender>> controls;  // each side dials one
  std::shared_ptr<FrameSender> dialled;                // the one of these that this process has dialled
  Time frame_at;                                       // the arrival of the last frame
  Time heartbeat_sent_at;                              // the last heartbeat to it
  Time said_at;                                        // the arrival of the last heartbeat
  std::vector<Activity> doing;
  std::vector<LaunchTime> launches;  // its latest ones, the oldest first
  std::vector<Behind> behind;        // what it said of others, at `said_at`
  int64_t their_sent_ns = 0;         // by its clock, of the heartbeat that arrived at `said_at`
  PeerClock clock;
  std::deque<SharedLaunch> shared_launches;
  std::deque<ResourceSample> samples;
  bool left = false;  // it sent a goodbye
  std::string how;    // the goodbye's text: "it has ended (exit code 3)"; empty if it left this epoch
  Time left_at;
  std::string DepartureReason() const { return how.empty() ? "it has gone on to another epoch of the job" : how; }
  std::vector<std::string> unsent;  // encoded control messages that wait for a connection
  // Uses the first connection that has not ended.
  void Send(const std::string& frame) {
    for (auto& control : controls) {
      if (control->Send(frame, false)) return;
    }
  }
  // Uses the connection that this process has dialled, if there is one. Only the end that has dialled sees that a path
  // fails, and only where it sends something (network/paths.h).
  void SendHeartbeat(const std::string& frame) {
    if (dialled && dialled->Send(frame, true)) return;
    for (auto& control : controls) {
      if (control->Send(frame, true)) return;
    }
  }
};

}  // namespace jaxring
