// The engine of a process: it launches the operations of call sites and ends them, over a network that it is given.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/halting.h"
#include "engine/heartbeats/resource_sampler.h"
#include "engine/heartbeats/stall_watch.h"
#include "engine/heartbeats/wait_reporter.h"
#include "engine/operation/active_operations.h"
#include "engine/operation/interpreter.h"
#include "engine/operation/operation.h"
#include "engine/options.h"
#include "engine/records/operands.h"
#include "engine/records/recorder.h"
#include "engine/records/warnings.h"
#include "engine/requests/python_queues.h"
#include "engine/sites.h"
#include "engine/threads/completion.h"
#include "engine/threads/cpu_placement.h"
#include "engine/workers/counters.h"
#include "engine/workers/workers.h"
#include "network/network.h"

namespace jaxring {

class Site;

class Engine {
 public:
  using MakeNetwork = std::function<std::unique_ptr<Network>(NetworkClient* client)>;
  Engine(EngineOptions options, const MakeNetwork& make_network);
  ~Engine();
  Engine(const Engine&) = delete;

  using Started = std::shared_ptr<Operation>;
  // Starts the operations of a call whose participants have all arrived. All of them send before any waits for its
  // peers. With `help` the calling thread, which brought the last participant, executes their lanes as far as they go
  // without a long wait, and workers do the rest. Reorders `ops`, and moves out of it the operations that can be
  // reused.
  [[gnu::hot]] void Launch(std::span<Started> ops, bool help);

  Network& network() { return *network_; }
  CompletionPool& completions() { return completions_; }
  Recorder& recorder() { return recorder_; }
  const WaitReporter& reporter() const { return reporter_; }
  Sites& sites() { return sites_; }
  Halting& halting() { return halting_; }
  // For the log; at most one for each call site.
  Warnings& warnings() { return warnings_; }
  const EngineOptions& options() const { return options_; }
  // To be started before the first operation.
  Workers& workers() { return workers_; }

  // Closed by Abort.
  PythonQueues& python() { return python_; }
  // As PythonQueues::NextRequest. The thread that calls this also samples how long threads wait for CPUs.
  bool NextRequest(double timeout_s, PlanRequest* request);
  // Whether an operation of the plan with this key is in flight.
  bool InFlight(uint64_t plan_key);
  // Fails the operations in flight of the plan with this key, here and in the other processes.
  void FailPlan(uint64_t plan_key, const Status& status);
  // Fails the operations that were in flight at time `at`, here and in the processes that take part. The error is the
  // operation's name and `why`. Later calls are not affected. False if there was no such operation.
  bool Interrupt(const std::string& why, Clock::time_point at);
  // Records in a plan's latch that `process` has confirmed that its program is the same.
  void Confirm(ProgramLatch& latch, int process);

  // Fails all operations in flight and all later ones, because the process is about to end. Waits `timeout_s` at most
  // for those in flight to end. With `goodbye`, and if nothing was in flight, peers are told that this process ends in
  // good order; otherwise that it gives up. `how` is appended to that message: " (exit code 3)", " after an uncaught
  // ValueError: ...".
  void Abort(const std::string& reason, double timeout_s, bool goodbye, const std::string& how = "");

  // Fails all operations in flight and all later ones until Resume. With `tell` the linked processes, but for `except`,
  // are told and halt, too. False if this process was halted before; then the first reason stays.
  bool Halt(const std::string& reason, bool tell = true, int except = -1);
  // Begins a new epoch of the job; the engine must be halted. Drops links, plans, counts and failures, so that nothing
  // of an earlier epoch reaches a later one. False if an operation has not ended within `timeout_s`; the caller may try
  // again.
  bool Renew(uint64_t epoch, double timeout_s);

  EngineCounters& counters() { return counters_; }

 private:
  // What the network calls, from its thread. The engine itself has no virtual functions: this thread runs while classes
  // derived from the engine are still being made, or have been destroyed.
  class Client final : public NetworkClient {
   public:
    explicit Client(Engine* engine) : engine_(engine) {}
    void OnTick() override { engine_->OnTick(); }
    void OnFailure(uint64_t key, const Status& failure) override { engine_->active_.Fail(key, failure); }
    void OnHalted(int process, const std::string& reason) override { engine_->Halt(reason, true, process); }
    void OnMessage(int process, const std::string& text) override {
      engine_->python_.AddControlMessage({process, text});
    }
    void OnClock(int process, const ClockOffset& clock) override { engine_->recorder_.Keep(process, clock); }
    std::optional<std::pair<LaunchTime, uint64_t>> FindLaunch(uint64_t key, uint64_t sequence) override {
      return engine_->recorder_.FindLaunch(key, sequence);
    }

   private:
    Engine* const engine_;
  };

  // Deadlines, crashes, heartbeats and warnings.
  void OnTick();

  // Ends the workers and the network's thread.
  void StopThreads();
  [[gnu::hot]] void Begin(std::span<Started> ops, bool help);
  // Executes operations on the launching thread, and polls for their peers for a short time. True if all ended.
  [[gnu::hot]] bool ExecuteHere(std::span<Started> ops);
  // Hands the operations that have not ended to the workers.
  [[gnu::hot]] void HandOver(std::span<Started> ops);
  // Advances every lane of an operation once; true if any made progress.
  [[gnu::hot]] bool Execute(const std::shared_ptr<Operation>& op);
  [[gnu::hot]] void Finish(const std::shared_ptr<Operation>& op);
  // Warns of `text` or fails the operation with it, as the options say; nothing if it is empty.
  void ReportNonFinite(Operation& op, const std::string& text);
  // Fails an operation that one of these processes takes part in, whichever rank it waits for.
  void FailCrashed(Operation& op, const std::map<int, Crash>& crashes, Clock::time_point now);
  // Examines lanes, which makes them busy: returns whether workers that may have skipped them are to be woken.
  bool WarnOfStalls(Clock::time_point now);
  // Confirms a latch for processes that ended a while ago, since these send no confirmation. The lanes then find the
  // end of their links. Until then Python may still find in their last messages that they ran another program.
  void OpenLatchIfPeersLeft(ProgramLatch& latch, const std::set<int>& left);
  // The failure of an operation in which rank `self` waits for rank `peer` over the ended link `link`. The cause is a
  // failure that a peer reported for this operation; else the end of `peer`'s process; else the link's end.
  [[gnu::cold]] Status Loss(const Operation& op, int self, int peer, const LinkEnd& link);
  // Fails an operation that waits for one of these processes, from which nothing more can arrive.
  void FailLeft(Operation& op, const std::set<int>& left);
  // Whether an operation may end well though a process sends nothing more: what it waits for comes from others, or is
  // on its way.
  bool MayDoWithout(Operation& op, int process);
  // Fails an operation that may not begin, because the engine is halted or the plan is of an earlier epoch.
  void FailRefused(Operation& op);
  std::vector<Activity> Activities(Clock::time_point now);
  // A heartbeat with what this process does and has launched.
  ControlFrame Heartbeat(Clock::time_point now);
  void SendHeartbeats(Clock::time_point now);

  EngineOptions options_;
  Client client_;
  const std::unique_ptr<Network> network_;
  Interpreter interpreter_;
  CompletionPool completions_;
  Recorder recorder_;
  ResourceSampler resources_;
  const std::unique_ptr<OperandSaver> saver_;  // null unless asked for
  EngineCounters counters_;
  Halting halting_;
  ActiveOperations active_;
  Sites sites_;
  Warnings warnings_;
  const WaitReporter reporter_;
  StallWatch stalls_;  // the network's thread only
  WaiterPlacement placement_;
  PythonQueues python_;
  Workers workers_;  // the last member: like the network's thread they use everything above
};

}  // namespace jaxring
