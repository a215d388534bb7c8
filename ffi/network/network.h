// What an engine knows of the other processes of its job: links that carry messages, what each process has said of
// failures and of its end, and what to do about that. It knows messages, not operations. Classes below it make the
// connections: SystemNetwork those of the system, and a simulation's its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "network/peers/failure_log.h"
#include "network/peers/network_client.h"
#include "network/peers/peer_monitor.h"
#include "network/unexpected_messages.h"
#include "transport/core/busy_pollers.h"
#include "transport/core/doorbell.h"
#include "transport/core/faults.h"
#include "transport/core/links.h"

namespace jaxring {

class Network {
 public:
  using Time = PeerMonitor::Time;

  virtual ~Network() = default;
  Network(const Network&) = delete;

  // What peers ring when they send a message or free a slot.
  Doorbell& doorbell() { return *doorbell_; }
  Links& links() { return links_; }
  UnexpectedMessages& unexpected() { return unexpected_; }
  BusyPollers& busy_pollers() { return busy_pollers_; }
  PeerMonitor& peers() { return peers_; }
  FailureLog& failures() { return failures_; }

  // Begins to call the client. Before that no connection can be added, and nothing be checked or dropped.
  virtual void Start() = 0;
  // Afterwards the client is not called any more.
  virtual void Stop() = 0;
  // Has the client's OnTick called soon.
  virtual void Kick() = 0;
  // Another doorbell of this process, for its own threads.
  virtual std::unique_ptr<Doorbell> MakeDoorbell() const = 0;

  // An operation has failed in this process: the others are told and fail it with the same message. Nothing if its
  // failure is known already. `first`: this process, which has seen it before all others; -1: one has reported it of
  // another operation of the same call.
  void BroadcastFailure(uint64_t key, Status failure, int first);
  // What is to be done at each tick: looks at the connections, and closes the links with processes that have ended in
  // good order. Returns those whose last messages have arrived by now, too.
  std::vector<int> Check(Time now);

  // The job's epoch, which begins with the connections of the one before in service. DropConnections then ends these,
  // so that nothing of an earlier epoch reaches a later one.
  uint64_t epoch() const { return epoch_.load(); }
  void BeginEpoch(uint64_t epoch) { epoch_ = epoch; }
  void DropConnections();

  // Sends the goodbye of each link, now and of those that come later: no more data follows.
  virtual void SayGoodbyes() = 0;
  // Whether the peers have all that was sent. Connections may have to go on over another path to bring the last of it.
  virtual bool Settled() const { return true; }
  // Connections that are lost are not connected again from now on.
  virtual void EndPaths() {}
  // How many connections can go on over another path, and how many of these do so now, or are lost.
  virtual std::pair<int, int> CountPaths() const { return {0, 0}; }

 protected:
  // `client` must live as long as the network.
  Network(std::unique_ptr<Doorbell> doorbell, uint32_t slot_bytes, const FaultPlan& faults, NetworkClient* client);

  // What arrives on a control connection, and its end: without a goodbye before it, the process counts as crashed.
  void OnFrame(int process, const ControlFrame& frame);
  void ControlEnded(int process, const std::string& why, Ending ending);
  // Sends what a process has missed before this connection with it was in service.
  void SendMissed(int process, FrameSender& control);
  // The callback for a link's end: a process whose connection ends without a goodbye counts as crashed.
  OnEnd LinkEnded(int process);

 private:
  // What Check and DropConnections do to the connections themselves.
  virtual void CheckConnections(Time /*now*/) {}
  virtual void EndConnections() = 0;

  // Records the end of a process, and tells the others.
  void RecordCrash(int process, const std::string& reason, Ending ending, int witness = -1);
  // False if a failure was recorded for this operation before.
  bool RecordFailure(uint64_t key, const Status& failure);
  void CloseLeft(const std::vector<PeerMonitor::Departure>& departures);

  NetworkClient* const client_;
  const std::unique_ptr<Doorbell> doorbell_;
  Links links_;
  UnexpectedMessages unexpected_;
  BusyPollers busy_pollers_;
  PeerMonitor peers_;
  FailureLog failures_;
  std::atomic<uint64_t> epoch_{0};
  std::atomic<bool> any_left_{false};  // of the peers
};

}  // namespace jaxring
