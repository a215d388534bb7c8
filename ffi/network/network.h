// The connections of this process with the other processes of a job: links that carry messages, control connections
// that carry heartbeats and failures, and what is known of each process's end. It knows messages, not operations.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "network/connectors.h"
#include "network/paths.h"
#include "network/peers/failure_log.h"
#include "network/peers/network_client.h"
#include "network/peers/peer_monitor.h"
#include "network/unexpected_messages.h"
#include "transport/core/busy_pollers.h"
#include "transport/core/doorbell.h"
#include "transport/core/faults.h"
#include "transport/core/links.h"
#include "transport/core/poller.h"

namespace jaxring {

struct NetworkOptions {
  uint32_t slot_bytes;
  double link_timeout_s;  // the link to a peer's host counts as cut when that host has acknowledged nothing for so long
  FaultPlan faults;       // to inject into the connections, for tests
};

class Network {
 public:
  using Time = PeerMonitor::Time;

  // `client` must live as long as the network.
  Network(NetworkOptions options, NetworkClient* client);
  ~Network() { Stop(); }
  Network(const Network&) = delete;

  // Starts the thread that polls, which calls the client. Before that no connection can be added, and nothing be
  // checked or dropped.
  void Start();
  // Ends that thread: afterwards the client is not called any more.
  void Stop();

  // What peers ring when they send a message or free a slot.
  Doorbell& doorbell() { return *doorbell_; }
  Connectors& connectors() { return connectors_; }
  Links& links() { return links_; }
  UnexpectedMessages& unexpected() { return unexpected_; }
  BusyPollers& busy_pollers() { return busy_pollers_; }
  Paths& paths() { return paths_; }
  PeerMonitor& peers() { return peers_; }
  FailureLog& failures() { return failures_; }

  // Finishes a link, of which `connectors` has made this end, and puts it into service. Returns a description of the
  // connection, or "". The rest as for Agreed; with `path`, a name that the other end gives, too, the link can go on
  // over another path, where the transport can do that. Throws std::runtime_error; the link is then forgotten.
  std::string AddLink(const LinkName& link, Descriptor socket, double timeout_s, const std::string& key = "",
                      const std::string& path = "");
  // Adds a control connection with a process. If it ends without a goodbye, the process counts as crashed. `path` as
  // for AddLink; `dialled`: this process has made the connection.
  void AddControl(int process, std::unique_ptr<Stream> stream, const std::string& path = "", bool dialled = false);

  // An operation has failed in this process: the others are told and fail it with the same message. Nothing if its
  // failure is known already. `first`: this process, which has seen it before all others; -1: one has reported it of
  // another operation of the same call.
  void SpreadFailure(uint64_t key, Status failure, int first);
  // Has the client's OnTick called soon, and the handlers of the poller look at their connections.
  void Kick() { poller_->Kick(); }
  // What is to be done at each tick: looks for ports and paths that have failed, and closes the links with processes
  // that have ended in good order. Returns those whose last messages have arrived by now, too.
  std::vector<int> Check(Time now);

  // The job's epoch, which begins with the connections of the one before in service. DropConnections then ends these,
  // so that nothing of an earlier epoch reaches a later one.
  uint64_t epoch() const { return epoch_.load(); }
  void BeginEpoch(uint64_t epoch) { epoch_ = epoch; }
  void DropConnections();
  // Sends the goodbye of each link, now and of those that come later: no more data follows.
  void SayGoodbyes();

 private:
  void OnFrame(int process, const ControlFrame& frame);
  void ControlEnded(int process, const std::string& why, Ending ending);
  // Records the end of a process, and tells the others.
  void RecordCrash(int process, const std::string& reason, Ending ending, int witness = -1);
  // False if a failure was recorded for this operation before.
  bool RecordFailure(uint64_t key, const Status& failure);
  void CloseLeft(const std::vector<PeerMonitor::Departure>& departures);
  // The callback for a link's end: a process whose connection ends without a goodbye counts as crashed.
  OnEnd LinkEnded(int process);
  // Registers the goodbye that a link sends when this process ends; sends it at once if it is already ending.
  void AddGoodbye(const std::function<void()>& say);

  const NetworkOptions options_;
  NetworkClient* const client_;
  const std::unique_ptr<Doorbell> doorbell_;
  Links links_;
  UnexpectedMessages unexpected_;
  BusyPollers busy_pollers_;
  Paths paths_;  // before the peers, whose connections are in it
  PeerMonitor peers_;
  FailureLog failures_;
  std::atomic<uint64_t> epoch_{0};
  std::atomic<bool> any_left_{false};  // of the peers
  Mutex goodbyes_mutex_;
  // Each sends the goodbye of one link
  std::vector<std::function<void()>> goodbyes_ JAXRING_GUARDED_BY(goodbyes_mutex_);
  bool said_goodbye_ JAXRING_GUARDED_BY(goodbyes_mutex_) = false;
  Connectors connectors_;
  std::unique_ptr<Poller> poller_;  // the last member: its thread uses everything above
};

}  // namespace jaxring
