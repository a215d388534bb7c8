// The engine of a process: a few threads that play the lanes of all operations in flight, and sleep when none can move.
#pragma once

#include <atomic>
#include <condition_variable>
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

#include "engine/completion.h"
#include "engine/cpu_placement.h"
#include "engine/operation/interpreter.h"
#include "engine/operation/operation.h"
#include "engine/operation/unexpected_messages.h"
#include "engine/records/operands.h"
#include "engine/records/recorder.h"
#include "network/control.h"
#include "transport/core/bell.h"
#include "transport/core/faults.h"
#include "transport/core/links.h"
#include "transport/core/poller.h"
#include "transport/plugin/plugin_link.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs.h"

namespace jaxring {

class Site;

struct EngineOptions {
  int threads = 2;
  uint32_t slot_bytes = 128 * 1024;
  int64_t spin_us = 20;  // how long a launching thread and a worker look again before they sleep
  // How long the only rank of its process waits in its handler for peers of a small operation. Handing the wait over
  // costs three wake-ups, some 60 us in all; ranks that come from one step of a program are seldom further apart.
  int64_t patience_us = 300;
  FaultPlan faults{};  // what befalls messages to other processes
  // What to do about NaN or infinity in operands and results: nothing, a warning (`TakeWarnings`), an error.
  enum class NonFinite { kIgnore, kWarn, kFail } non_finite = NonFinite::kIgnore;
  bool checksums = false;  // of every message's payload; the same in all processes
  // What the host of a peer has not acknowledged for so long has no way to it.
  double link_timeout_s = 10;
  // When to warn of an operation that waits (`NextStall`): after so long, six times and thirty-six times as long, and
  // so on; 0: never.
  double stall_warning_s = 0;
  std::string trace_file{};     // where the recorder keeps its ring; empty: in unnamed shared memory
  std::string record_hint{};    // said behind errors that others have a part in: how to look at the records
  std::string operand_files{};  // what the files' names begin with in which operands of failed operations are saved
  uint64_t operand_bytes = 0;   // how much of them; 0: none
};

// What a site asks of Python: a plan for one of its groups.
struct PlanRequest {
  uint64_t id = 0;
  std::shared_ptr<Site> site;
  int group = 0;
  size_t collective = 0;            // of those of the site
  uint64_t ordinal = 0, epoch = 0;  // of the collective and the site, when it asked

  const std::string& spec() const;
  // See Site.
  void Resolve(std::shared_ptr<const Plan> plan) const;
  void Identify(uint64_t key, Half half, int process) const;
  void Reject(Status status) const;
};

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;

  using Started = std::shared_ptr<Operation>;
  // Starts the operations of a call, whose participants are all here: all send before any waits for its peers. With
  // `help` this thread, which brought the last participant, plays their lanes as far as they go without waiting long;
  // the workers do the rest. Changes their order, and takes those back that may serve again.
  [[gnu::hot]] void Launch(std::span<Started> ops, bool help);

  Bell& bell() { return *bell_; }
  Links& links() { return links_; }
  Poller& poller() { return *poller_; }
  UnexpectedMessages& unexpected() { return unexpected_; }
  CompletionPool& completions() { return completions_; }
  Recorder& recorder() { return recorder_; }
  const EngineOptions& options() const { return options_; }

  // Planning requests, served by one Python thread. False after `timeout_s`, and at once from Abort on.
  bool NextRequest(double timeout_s, PlanRequest* request);
  void Ask(PlanRequest request);
  void CloseRequests();
  bool stopping() const { return stop_.load(std::memory_order_acquire); }
  // What Python tells the Python of another process, in order; kept until the two are connected. At most
  // ControlFrame::kMaxText bytes. Lost where the process is gone.
  void SendControlMessage(int process, const std::string& text);
  // The next note that came, and from which process. A note ends NextRequest's wait.
  std::optional<std::pair<int, std::string>> NextControlMessage();
  // Whether an operation is in flight under a plan's key.
  bool InFlight(uint64_t plan_key);
  // What the threads that plan wait for, in words; empty where they do not wait. Said where a plan comes too late.
  void PlanningWaitsFor(const std::string& words);
  std::string PlanningWaitsFor();
  // Fails what is in flight under a plan's key, here and in the other processes.
  void FailPlan(uint64_t plan_key, const Status& status);
  // Fails what was in flight at a time, with its operation's name before `why`, here and in the processes that take
  // part. The next calls are not touched. False if there was nothing.
  bool Interrupt(const std::string& why, Clock::time_point at);
  // Tells the others that this process is about to end by a signal. What is in flight stays, so that no thread goes on
  // from it into what it cannot finish.
  void SayLeaving(const std::string& why);
  // A process's word that a latch waited for has come.
  void Confirm(ProgramLatch& latch, int process);

  // Sites whose participants may be late are looked at for their deadlines.
  void Watch(std::weak_ptr<Site> site);
  // How many executions have begun under a plan's key, of all sites that have it; receives count by themselves.
  std::shared_ptr<std::atomic<uint64_t>> CounterOf(uint64_t key, bool recv);
  // What became of a buffered send after its caller was let go: told to the next call under the same key.
  Status TakeDetachedFailure(uint64_t key);
  // Whether a process ended without saying goodbye: every operation with a rank of it fails, whomever it waits for.
  bool Crashed(int process);
  // Puts a connected socket into service as a link, and takes it.
  void AddTcp(int process, int channel, std::unique_ptr<Stream> stream, bool sending);
  // RDMA links in the making, and the end of it: the link is in service. Takes `fd`; returns the connection in words.
  VerbsJoin& verbs() { return verbs_; }
  Lookers& lookers() { return lookers_; }
  std::string AddVerbs(int process, int channel, bool sending, int fd, double timeout_s);
  // The same by a network plugin.
  PluginLinks& plugins() { return plugins_; }
  std::string AddPlugin(int process, int channel, bool sending, int fd, double timeout_s);
  // Takes the connection beside the data with a process. One that ends without a goodbye has crashed.
  void AddControl(int process, std::unique_ptr<Stream> stream);
  // An operation failed here, in process `own`, that others take part in: they are told, and fail it too, with the same
  // words.
  void BroadcastFailure(uint64_t key, const Status& status, int own);
  // The same with what was told of another operation of the same call.
  void ForwardFailure(uint64_t key, const Status& told);
  // What another process said of an operation that it made fail.
  std::optional<Status> FailureFor(uint64_t key);
  // A sentence for the log of what has waited for long, without its subject, this process: "has waited 10 s in ...".
  // Nothing after `timeout_s`, and at once from Abort on.
  std::optional<std::string> NextStall(double timeout_s);
  // What is known of a process that an operation waits for: "rank 3 (process 1 on b) has not moved for 4.1 s, last seen
  // in ...". `who` names it.
  std::string DescribePeer(int process, const std::string& who, uint64_t key);

  // Fails everything in flight and everything that comes later: the process is about to end. Waits for what is in
  // flight to notice, `timeout_s` at most.
  // Peers are told that it ends in good order if `goodbye`, and if nothing was in flight; otherwise that it gives up.
  // `how` is what they are told with it: " (exit code 3)", " after an uncaught ValueError: ...".
  void Abort(const std::string& reason, double timeout_s, bool goodbye, const std::string& how = "");

  // Fails everything in flight and all that comes, until Resume; with `tell` the processes that are linked are told,
  // and do so, too. False if this process was halted before; the first reason stays.
  bool Halt(const std::string& reason, bool tell = true, int except = -1);
  // Of the job: see Renew.
  uint64_t epoch() const { return epoch_.load(); }
  // Whether something has failed in this epoch that others take part in.
  bool Troubled() const { return troubled_.load(std::memory_order_acquire); }
  void NoteTrouble() { troubled_.store(true, std::memory_order_release); }
  // Why it is halted, if it is.
  std::optional<std::string> Halted();
  // Processes that have ended, in good order or not, as far as one knows.
  std::vector<int> Gone();
  // Halted: forgets links, plans, counts and failures, so that nothing of an earlier epoch of the job reaches a
  // later one. False if an operation has not ended `timeout_s` from now; it may be called again then.
  bool Renew(uint64_t epoch, double timeout_s);
  void Resume();
  // The list of sites; returns the epoch.
  uint64_t Register(Site* site);
  void Unregister(Site* site);

  // An error's text, for who made the call.
  std::string ToMessage(const Status& status) const;

  // Sentences for the log that have come up since the last call; at most one for each call site.
  std::vector<std::string> TakeWarnings();

  struct Counters {
    std::atomic<int64_t> sites{0}, in_flight{0};  // in_flight: local ranks that wait for the end of an operation
    std::atomic<uint64_t> operations{0}, inline_operations{0}, failures{0}, sleeps{0}, spills{0}, moves{0};
  };
  Counters& counters() { return counters_; }

 private:
  void Work();
  [[gnu::hot]] void Begin(std::span<Started> ops, bool help);
  // Plays operations on the thread that launches them, and waits a moment for their peers. True if all ended.
  [[gnu::hot]] bool PlayHere(std::span<Started> ops);
  // The launching thread begins to wait: it says where, and leaves a processor that another process's waits on. Returns
  // the one that it is on.
  int PlaceWaiter(const Operation& op, Clock::time_point now);
  // Leaves those that have not ended to the workers.
  [[gnu::hot]] void HandOver(std::span<Started> ops);
  // Wakes up to `count` workers for what has become active.
  void WakeWorkers(int count);
  // One look at every lane of an operation; true if any moved.
  [[gnu::hot]] bool Play(const std::shared_ptr<Operation>& op);
  [[gnu::hot]] void Finish(const std::shared_ptr<Operation>& op);
  // Does about `text` what the options say, if there is any.
  void ReportNonFinite(Operation& op, const std::string& text);
  void Spill();
  void Tick();
  // How another process was lost.
  struct Crash {
    std::string reason;
    Ending ending = Ending::kNoWord;
    Clock::time_point seen;
    int witness = -1;  // the process that says so; -1: this one saw it by itself
  };
  // What counts from now on: this, or what was known of it before.
  Crash NoteCrash(int process, const std::string& reason, Ending ending, int witness = -1);
  void FailCrashed(Operation& op, Clock::time_point now);
  void FailLate(Operation& op, Clock::time_point now);
  // What an operation's lanes wait for, and what is known of those processes, as sentences; and a rank of each of them.
  std::string DescribeWaiting(Operation& op, std::map<int, int>* waited_for);
  // Something that waits.
  struct Stall {
    uint64_t progress = 0;
    Clock::time_point since;  // it has made no progress
    int told = 0;             // warnings of it
    std::shared_ptr<Operation> op;
    std::string what;  // without an operation
  };
  void WarnOfStalls(Clock::time_point now);
  static std::string DescribeStall(const Stall& stall, const std::string& waits, Clock::time_point now);
  // Those who have ended say nothing any more: the lanes find out what that means for them.
  void OpenLatchIfPeersLeft(ProgramLatch& latch);
  // What is known of a process that has ended, in good order or not.
  PeerEnd Known(int process);
  // The failure of an operation in which rank `self` waits for rank `peer`: what a peer has said of this operation, or
  // else the end of `peer`'s process, or else `link`, by which nothing more comes.
  [[gnu::cold]] Status Loss(const Operation& op, int self, int peer, const LinkEnd& link);
  // Closes the links with processes that have ended in good order; returns those that have said so a while ago.
  std::set<int> CloseLeft(Clock::time_point now);
  // Fails an operation that waits for one of these processes, from which nothing more can come.
  void FailLeft(Operation& op, const std::set<int>& left);
  // Whether a process has ended in good order.
  bool HasLeft(int process);
  // What a link does at its end: a process whose connection ends without its goodbye is lost.
  OnEnd LinkEnded(int process, bool by_socket);
  // Fails what may not begin: the engine is halted, or the plan is of an earlier epoch.
  void FailRefused(Operation& op);
  // Whether a process is alive and in this operation, too, as far as one knows.
  bool WaitsTogether(int process, const Operation& op);
  void OnFrame(int process, const ControlFrame& frame);
  void ControlEnded(int process, const std::string& why, Ending ending);
  // To every process that is linked, but for one.
  void TellAll(const ControlFrame& frame, int except);
  // True if the failure of this operation is news; it is remembered.
  bool RecordFailure(uint64_t key, const Status& status);
  // The last of those, as one tells them.
  std::vector<ControlFrame> LastFailures();
  std::string LastSeen(int process);
  std::vector<Activity> Activities(Clock::time_point now);
  void SendHeartbeats(Clock::time_point now);
  std::vector<std::shared_ptr<Operation>> Active(uint64_t* version);
  // A connection as the options spoil it. `what` tells those of a process apart.
  std::unique_ptr<Stream> WithInjectedFaults(std::unique_ptr<Stream> stream, int process, int what) const;

  EngineOptions options_;
  // Peers ring `bell_` for messages and room; only workers with operations in flight sleep on it. The others sleep on
  // `idle_`, so that a message for whoever is looking already costs its sender no system call.
  std::unique_ptr<Bell> bell_, idle_;
  Links links_;
  UnexpectedMessages unexpected_;
  Interpreter interpreter_;
  CompletionPool completions_;
  Recorder recorder_;
  const std::unique_ptr<OperandSaver> saver_;  // null unless asked for
  Counters counters_;
  std::atomic<bool> stop_{false}, aborted_{false};

  std::mutex mutex_;
  std::string abort_reason_;  // set before aborted_
  bool ending_ = false;       // for good
  std::vector<std::shared_ptr<Operation>> active_;
  std::atomic<uint64_t> version_{0};
  std::atomic<int> active_count_{0};
  std::atomic<int> unfinished_{0};  // operations that have begun, active or not
  std::atomic<uint64_t> epoch_{0};
  std::atomic<bool> troubled_{false};
  bool halt_told_ = false;
  std::mutex sites_mutex_;  // taken before no other
  std::map<uint64_t, Site*> sites_;
  uint64_t next_site_ = 0;
  std::vector<std::weak_ptr<Site>> watched_;
  std::map<std::pair<uint64_t, bool>, std::shared_ptr<std::atomic<uint64_t>>> counters_of_keys_;
  std::map<uint64_t, Status> detached_failures_;
  std::vector<std::string> warnings_;
  std::set<uint64_t> warned_;  // keys of plans
  std::map<int, Crash> crashes_;
  std::vector<std::function<void()>> goodbyes_;  // each tells one peer that this process ends in good order
  bool said_goodbye_ = false;
  std::atomic<bool> any_left_{false};  // of the peers
  // What other processes said, and this one to them, of operations that failed: the last of them.
  std::map<uint64_t, Status> known_failures_;
  std::deque<uint64_t> known_failure_order_;

  struct Peer {
    std::vector<std::shared_ptr<ControlLink>> controls;  // each side dials one
    Clock::time_point heard, told;                       // when it last said something, and was last told something
    Clock::time_point said_at;                           // when it said what it was doing
    std::vector<Activity> doing;
    bool left = false;  // with a goodbye
    std::string how;    // in its words: "it has ended (exit code 3)"; empty if it left this epoch
    Clock::time_point left_at;
    std::string Farewell() const { return how.empty() ? "it has gone on to another epoch of the job" : how; }
    std::vector<std::string> unsent;  // notes, encoded, for when there is a connection
    // By the first connection that has not ended.
    void Say(const std::string& frame, bool dispensable = false) {
      for (auto& control : controls) {
        if (control->Send(frame, dispensable)) return;
      }
    }
  };
  std::string farewell_;    // this process's last word, encoded: those who connect later are told it, too
  std::mutex peers_mutex_;  // taken after mutex_, if both are
  std::map<int, Peer> peers_;
  Clock::time_point signs_sent_{};  // the poller's thread only
  Clock::time_point stalls_looked_{};
  std::map<uint64_t, Stall> stalls_;  // by what waits; the poller's thread only

  const size_t processors_ = AllowedCpus();
  std::atomic<bool> crowded_{false};  // the host's processes outnumber them
  std::atomic<Clock::time_point> move_considered_at_{
      Clock::time_point{}};  // when a launching thread last found its seat taken

  std::mutex request_mutex_;
  std::condition_variable request_ready_;
  bool requests_closed_ = false;
  std::deque<PlanRequest> requests_;
  std::deque<std::pair<int, std::string>> control_messages_;
  uint64_t next_request_ = 1;
  std::string planning_waits_for_;
  std::condition_variable stall_ready_;
  std::deque<std::string> stall_texts_;

  std::vector<std::thread> workers_;
  std::string Enlist(int process, int channel, bool sending, JoinedLink joined);
  // Has a link say goodbye when this process ends; at once if it has done so.
  void AddGoodbye(std::function<void()> say);

  Lookers lookers_;
  VerbsJoin verbs_;
  PluginLinks plugins_;
  std::unique_ptr<Poller> poller_;  // last: its thread uses everything above
};

}  // namespace jaxring
