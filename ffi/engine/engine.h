// The engine of a process: a few worker threads execute the lanes of all operations in flight, and sleep when no lane
// can make progress.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/calls/stall.h"
#include "engine/counters.h"
#include "engine/heartbeats/peer.h"
#include "engine/heartbeats/resource_sampler.h"
#include "engine/operation/interpreter.h"
#include "engine/operation/operation.h"
#include "engine/operation/unexpected_messages.h"
#include "engine/options.h"
#include "engine/records/operands.h"
#include "engine/records/recorder.h"
#include "engine/requests/python_queues.h"
#include "engine/threads/completion.h"
#include "engine/threads/cpu_placement.h"
#include "network/paths.h"
#include "network/transports.h"
#include "transport/core/doorbell.h"
#include "transport/core/faults.h"
#include "transport/core/links.h"
#include "transport/core/poller.h"
#include "transport/tcp/tcp.h"

namespace jaxring {

class Site;

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;

  using Started = std::shared_ptr<Operation>;
  // Starts the operations of a call whose participants have all arrived. All of them send before any waits for its
  // peers. With `help` the calling thread, which brought the last participant, executes their lanes as far as they go
  // without a long wait, and workers do the rest. Reorders `ops`, and moves out of it the operations that can be
  // reused.
  [[gnu::hot]] void Launch(std::span<Started> ops, bool help);

  Doorbell& doorbell() { return *doorbell_; }
  Links& links() { return links_; }
  Poller& poller() { return *poller_; }
  UnexpectedMessages& unexpected() { return unexpected_; }
  CompletionPool& completions() { return completions_; }
  Recorder& recorder() { return recorder_; }
  const EngineOptions& options() const { return options_; }

  // Closed by Abort.
  PythonQueues& python() { return python_; }
  // As PythonQueues::NextRequest. The thread that calls this also samples how long threads wait for CPUs.
  bool NextRequest(double timeout_s, PlanRequest* request);
  bool stopping() const { return stop_.load(std::memory_order_acquire); }
  // Sends a control message from Python to the Python of another process. Messages arrive in order, and are queued
  // until the two processes are connected. At most ControlFrame::kMaxText bytes. Lost if the process has ended.
  void SendControlMessage(int process, const std::string& text);
  // Whether an operation of the plan with this key is in flight.
  bool InFlight(uint64_t plan_key);
  // Fails the operations in flight of the plan with this key, here and in the other processes.
  void FailPlan(uint64_t plan_key, const Status& status);
  // Fails the operations that were in flight at time `at`, here and in the processes that take part. The error is the
  // operation's name and `why`. Later calls are not affected. False if there was no such operation.
  bool Interrupt(const std::string& why, Clock::time_point at);
  // Tells the other processes that this one is about to end by a signal. Operations in flight are left as they are, so
  // that no thread continues from them into work that it cannot finish.
  void SayLeaving(const std::string& why);
  // Records in a plan's latch that `process` has confirmed that its program is the same.
  void Confirm(ProgramLatch& latch, int process);

  // Has the poller's thread check the deadlines of a site's executions that wait for participants or plans.
  void Watch(std::weak_ptr<Site> site);
  // Counts the executions that have begun under a plan's key, over all sites that have it. Receives have a counter of
  // their own.
  std::shared_ptr<std::atomic<uint64_t>> CounterOf(uint64_t key, bool recv);
  // The failure of a buffered send whose caller had already returned. The next call under the same key reports it.
  Status TakeDetachedFailure(uint64_t key);
  // Whether a process ended without a goodbye. Every operation with one of its ranks then fails, whichever rank that
  // operation waits for.
  bool Crashed(int process);
  // Makes a link of a connected socket and takes ownership of it. With `path` the link can go on over another one.
  void AddTcp(int process, int channel, std::unique_ptr<Stream> stream, bool sending, const std::string& path = "");
  // The transport of that name (ffi/network/transports.cc). Throws std::runtime_error if there is none.
  OfferedTransport& transport(const std::string& name);
  // Completes a link that the transport has prepared, and puts it into service. Takes ownership of `fd`. Returns a
  // description of the connection. With `path`, where the transport can, the link can go on over other ports.
  std::string AddOffered(const std::string& transport, int process, int channel, bool sending, int fd, double timeout_s,
                         const std::string& path = "");
  BusyPollers& busy_pollers() { return busy_pollers_; }
  // Adds a control connection with a process. If it ends without a goodbye, the process counts as crashed. `path` as
  // for AddTcp; `dialled`: this process has made the connection.
  void AddControl(int process, std::unique_ptr<Stream> stream, const std::string& path = "", bool dialled = false);
  Paths& paths() { return paths_; }
  // An operation failed in this process, `own`. The other processes are told and fail it with the same message.
  void BroadcastFailure(uint64_t key, const Status& status, int own);
  // Forwards a failure that another process reported to a further operation of the same call.
  void ForwardFailure(uint64_t key, const Status& failure);
  // The failure of an operation, if one is known here.
  std::optional<Status> FailureFor(uint64_t key);
  // What is known of a process that an operation waits for: "rank 3 (process 1 on b) has not moved for 4.1 s, last seen
  // in ...". `name` is the subject.
  std::string DescribePeer(int process, const std::string& name, uint64_t key);

  // Fails all operations in flight and all later ones, because the process is about to end. Waits `timeout_s` at most
  // for those in flight to end. With `goodbye`, and if nothing was in flight, peers are told that this process ends in
  // good order; otherwise that it gives up. `how` is appended to that message: " (exit code 3)", " after an uncaught
  // ValueError: ...".
  void Abort(const std::string& reason, double timeout_s, bool goodbye, const std::string& how = "");

  // Fails all operations in flight and all later ones until Resume. With `tell` the linked processes, but for `except`,
  // are told and halt, too. False if this process was halted before; then the first reason stays.
  bool Halt(const std::string& reason, bool tell = true, int except = -1);
  // The job's epoch: see Renew.
  uint64_t epoch() const { return epoch_.load(); }
  // Whether an operation that other processes take part in has failed in this epoch.
  bool Troubled() const { return troubled_.load(std::memory_order_acquire); }
  void RecordTrouble() { troubled_.store(true, std::memory_order_release); }
  // The reason if the engine is halted.
  std::optional<std::string> Halted();
  // The processes that are known to have ended, in good order or not. Not those that have only left this epoch.
  std::vector<int> Gone();
  // Begins a new epoch of the job; the engine must be halted. Drops links, plans, counts and failures, so that nothing
  // of an earlier epoch reaches a later one. False if an operation has not ended within `timeout_s`; the caller may try
  // again.
  bool Renew(uint64_t epoch, double timeout_s);
  void Resume();
  // Adds to and removes from the list of sites. Register returns the epoch.
  uint64_t Register(Site* site);
  void Unregister(Site* site);

  // What the heartbeats of the connected processes have said since the last call; the first one is this process itself,
  // with its samples only. What is not taken for long is dropped.
  std::vector<Arrivals> TakeArrivals();

  // The error message that the caller of an operation gets.
  std::string ToMessage(const Status& status) const;

  // Warnings for the log since the last call; at most one for each call site.
  std::vector<std::string> TakeWarnings();

  EngineCounters& counters() { return counters_; }

 private:
  using Peer = ConnectedPeer;
  void Work();
  [[gnu::hot]] void Begin(std::span<Started> ops, bool help);
  // Executes operations on the launching thread, and polls for their peers for a short time. True if all ended.
  [[gnu::hot]] bool ExecuteHere(std::span<Started> ops);
  // The launching thread begins to wait: publishes its CPU, and moves off a CPU on which a thread of another process
  // waits. Returns the CPU.
  int PlaceWaiter(const Operation& op, Clock::time_point now);
  // Hands the operations that have not ended to the workers.
  [[gnu::hot]] void HandOver(std::span<Started> ops);
  // Wakes up to `count` workers for operations that have become active.
  void WakeWorkers(int count);
  // Advances every lane of an operation once; true if any made progress.
  [[gnu::hot]] bool Execute(const std::shared_ptr<Operation>& op);
  [[gnu::hot]] void Finish(const std::shared_ptr<Operation>& op);
  // Warns of `text` or fails the operation with it, as the options say; nothing if it is empty.
  void ReportNonFinite(Operation& op, const std::string& text);
  // Moves the messages of full rings to the unexpected-message queue.
  void Spill();
  // The poller's thread: deadlines, crashes, heartbeats and warnings.
  void Tick();
  // Records a crash and tells the linked processes. Returns the crash that counts: an earlier record of it if there is
  // one.
  Crash RecordCrash(int process, const std::string& reason, Ending ending, int witness = -1);
  void FailCrashed(Operation& op, Clock::time_point now);
  void FailLate(Operation& op, Clock::time_point now);
  // What an operation's lanes wait for, and the state of those processes, as sentences. Fills `waited_for` with a rank
  // of each of these processes.
  std::string DescribeWaiting(Operation& op, std::map<int, int>* waited_for);
  void WarnOfStalls(Clock::time_point now);
  // Confirms a latch for processes that ended a while ago, since these send no confirmation. The lanes then find the
  // end of their links. Until then Python may still find in their last messages that they ran another program.
  void OpenLatchIfPeersLeft(ProgramLatch& latch, const std::set<int>& left);
  // How and why a process has ended, in good order or not; empty if it is not known to have ended.
  PeerEnd EndOf(int process);
  // The failure of an operation in which rank `self` waits for rank `peer` over the ended link `link`. The cause is a
  // failure that a peer reported for this operation; else the end of `peer`'s process; else the link's end.
  [[gnu::cold]] Status Loss(const Operation& op, int self, int peer, const LinkEnd& link);
  // Closes the links with processes that have ended in good order. Returns those whose last messages have arrived by
  // now, too.
  std::set<int> CloseLeft(Clock::time_point now);
  // Fails an operation that waits for one of these processes, from which nothing more can arrive.
  void FailLeft(Operation& op, const std::set<int>& left);
  // Whether an operation may end well though a process sends nothing more: what it waits for comes from others, or is
  // on its way.
  bool MayDoWithout(Operation& op, int process) const;
  // Whether a process has ended in good order.
  bool HasLeft(int process);
  // The callback for a link's end: a process whose connection ends without a goodbye counts as crashed.
  OnEnd LinkEnded(int process, bool by_socket);
  // Fails an operation that may not begin, because the engine is halted or the plan is of an earlier epoch.
  void FailRefused(Operation& op);
  // Whether, by its last heartbeat, a process is alive and in this operation, too.
  bool WaitsTogether(int process, const Operation& op);
  void OnFrame(int process, const ControlFrame& frame);
  void ControlEnded(int process, const std::string& why, Ending ending);
  // Sends a frame to every linked process but `except`.
  void TellAll(const ControlFrame& frame, int except);
  // Records the failure of an operation. False if one was recorded before.
  bool RecordFailure(uint64_t key, const Status& status);
  // The latest of these failures, as frames.
  std::vector<ControlFrame> LastFailures();
  std::string LastSeen(int process);
  std::vector<Activity> Activities(Clock::time_point now);
  // A heartbeat with what this process does and has launched.
  ControlFrame Heartbeat(Clock::time_point now);
  void SendHeartbeats(Clock::time_point now);
  bool HasPeers();
  // Records a sample of what this process spends, if it is time for one.
  void SampleResources(Clock::time_point now);
  // Takes from a heartbeat how the peer's clock differs, its sample, and its launches of operations that this process
  // has launched, too. Under peers_mutex_.
  void OnHeartbeat(int process, const ControlFrame& frame);
  std::vector<std::shared_ptr<Operation>> Active(uint64_t* version);
  // Wraps a connection to inject the faults of the options. `what` gives each connection of a process its own faults.
  std::unique_ptr<Stream> WithInjectedFaults(std::unique_ptr<Stream> stream, int process, int what) const;

  EngineOptions options_;
  // Peers ring `doorbell_` when they send a message or free a slot; only workers with operations in flight sleep on it.
  // The other workers sleep on `idle_`, so that a message for a thread that is polling costs its sender no system call.
  std::unique_ptr<Doorbell> doorbell_, idle_;
  Links links_;
  UnexpectedMessages unexpected_;
  Interpreter interpreter_;
  CompletionPool completions_;
  Recorder recorder_;
  ResourceSampler resources_;
  const std::unique_ptr<OperandSaver> saver_;  // null unless asked for
  EngineCounters counters_;
  std::atomic<bool> stop_{false}, aborted_{false};

  std::mutex mutex_;
  std::string abort_reason_;  // set before aborted_
  bool ending_ = false;       // set by Abort, and never cleared
  std::vector<std::shared_ptr<Operation>> active_;
  std::atomic<uint64_t> version_{0};
  std::atomic<int> active_count_{0};
  std::atomic<int> unfinished_{0};  // operations that have begun, active or not
  std::atomic<uint64_t> epoch_{0};
  std::atomic<bool> troubled_{false};
  bool halt_told_ = false;
  std::mutex sites_mutex_;  // no other mutex is taken under it
  std::map<uint64_t, Site*> sites_;
  uint64_t next_site_ = 0;
  std::vector<std::weak_ptr<Site>> watched_;
  std::map<std::pair<uint64_t, bool>, std::shared_ptr<std::atomic<uint64_t>>> counters_of_keys_;
  std::map<uint64_t, Status> detached_failures_;
  std::vector<std::string> warnings_;
  std::set<uint64_t> warned_;  // keys of plans
  std::map<int, Crash> crashes_;
  std::vector<std::function<void()>> goodbyes_;  // each sends the goodbye of one link
  bool said_goodbye_ = false;
  std::atomic<bool> any_left_{false};  // of the peers
  // The latest failures of operations, as other processes reported them or this one did, by the operation's key.
  std::map<uint64_t, Status> known_failures_;
  std::deque<uint64_t> known_failure_order_;

  std::string farewell_;    // this process's last frame, encoded; sent also to processes that connect later
  Paths paths_;             // before the peers, whose connections are in it
  std::mutex peers_mutex_;  // taken after mutex_, if both are
  std::map<int, Peer> peers_;
  Clock::time_point stalls_checked_at_{};   // the poller's thread only
  std::map<uint64_t, Stall> stalls_;        // by operation or execution; the poller's thread only
  std::deque<ResourceSample> own_samples_;  // under peers_mutex_

  const size_t processors_ = AllowedCpus();
  std::atomic<bool> crowded_{false};  // the host's processes outnumber them
  std::atomic<Clock::time_point> move_considered_at_{
      Clock::time_point{}};  // when a launching thread last found another waiter on its CPU

  PythonQueues python_;

  std::vector<std::thread> workers_;
  std::string Enlist(int process, int channel, bool sending, JoinedLink joined);
  // Registers the goodbye that a link sends when this process ends; sends it at once if it is already ending.
  void AddGoodbye(const std::function<void()>& say);

  BusyPollers busy_pollers_;
  OfferedTransports offered_;
  std::unique_ptr<Poller> poller_;  // the last member: its thread uses everything above
};

}  // namespace jaxring
