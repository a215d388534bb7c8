// What this process knows of the others: its control connections with them, what their heartbeats say, and how each has
// ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "network/peers/network_client.h"
#include "network/peers/peer.h"

namespace jaxring {

// Safe from any thread. It sends frames and never reads any: the network hands it what arrives.
class PeerMonitor {
 public:
  using Time = Clock::time_point;
  using Peers = std::map<int, ConnectedPeer>;
  // A process that has ended in good order. A process that only goes on to a new epoch is not listed: it has halted
  // this process, which will drop all links itself.
  struct Departure {
    int process;
    std::string reason;
    Time at;
  };

  explicit PeerMonitor(NetworkClient* client) : client_(client) {}

  // Adds a control connection with a process; `dialled`: this process has made it.
  void Add(int process, const std::shared_ptr<FrameSender>& link, bool dialled);
  // Sends what a process has missed before the connection was in service: this process's last frame, and messages.
  void SendMissed(int process, FrameSender& link, const std::vector<ControlFrame>& failures);
  // Notes what a frame says of its sender.
  void OnFrame(int process, const ControlFrame& frame);

  // Sends a frame to every connected process but `except`.
  void TellAll(const ControlFrame& frame, int except);
  // Sends a control message from Python to the Python of another process. Messages arrive in order, and are queued
  // until the two processes are connected. At most ControlFrame::kMaxText bytes. Lost if the process has ended.
  void SendMessage(int process, const std::string& text);
  // Tells the other processes that this one is about to end, by a signal or with operations that it abandons.
  void SayLeaving(const std::string& why, Ending ending = Ending::kNoGoodbye);
  // Whether a process is to be sent a heartbeat.
  bool HeartbeatIsDue(Time now);
  // Sends `alive`, with the times that each receiver compares clocks by, to those for which it is due.
  void SendHeartbeats(ControlFrame alive, Time now);

  // Records that a process ended without a goodbye, and whether that is news. Returns the record that counts: an
  // earlier one if there is one. `witness`: the process that says so; -1: this one has seen it.
  std::pair<Crash, bool> RecordCrash(int process, const std::string& reason, Ending ending, int witness);
  // How processes have ended without a goodbye.
  std::map<int, Crash> Crashes();
  bool Crashed(int process);
  // Whether a process has said goodbye.
  bool HasLeft(int process);
  // Those that have, in good order.
  std::vector<Departure> Departures();
  // How and why a process has ended, in good order or not.
  PeerEnd EndOf(int process);
  // The processes that are known to have ended, in good order or not. Not those that have only left this epoch.
  std::vector<int> Gone();

  bool HasPeers();
  // Calls `look` with all peers, under the monitor's lock.
  void Look(const std::function<void(const Peers& peers)>& look);
  // A sample of what this process itself spends.
  void KeepOwn(const ResourceSample& sample);
  // What the heartbeats of each have said since the last call; the first one is this process itself, with its samples
  // only. What is not taken for long is dropped.
  std::vector<Arrivals> TakeArrivals();
  // Forgets all processes and their connections, as a new epoch begins.
  void Clear();

 private:
  // Takes from a heartbeat how the peer's clock differs, its sample, and its launches of operations that this process
  // has launched, too.
  void Compare(int process, ConnectedPeer& peer, const ControlFrame& frame) JAXRING_REQUIRES(mutex_);
  static bool IsDue(const ConnectedPeer& peer, Time now);

  NetworkClient* const client_;
  // No mutex of the network is taken under it but those of control connections; the client's recorder's is.
  Mutex mutex_;
  Peers peers_ JAXRING_GUARDED_BY(mutex_);
  std::map<int, Crash> crashes_ JAXRING_GUARDED_BY(mutex_);
  std::deque<ResourceSample> own_samples_ JAXRING_GUARDED_BY(mutex_);
  // This process's last frame, encoded; sent also to processes that connect later.
  std::string last_frame_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
