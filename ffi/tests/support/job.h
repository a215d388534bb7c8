// A job inside one test process. Each of the job's processes has an engine, linked as in real processes, and a planner;
// or all of them are simulated in virtual time.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/process_engine.h"
#include "engine/site.h"
#include "tests/simulation/simulation.h"
#include "tests/support/check.h"
#include "tests/support/schedules.h"

namespace jaxring::test {

// Expects completions, each of which must be called exactly once and within a minute.
class Ends {
 public:
  explicit Ends(std::string what = "");
  Completion Expect();
  // All statuses, in the order in which they were expected.
  std::vector<Status> Wait();
  void WaitOk();

 private:
  struct State;
  struct Token;
  std::string what_;
  std::shared_ptr<State> state_;
};

// kTcp uses RDMA instead if JAXRING_TEST_VERBS names devices. kFake: in virtual time (tests/simulation/simulation.h);
// there is one such job at a time, and everything happens while its test waits for ends.
enum class Wire { kShared, kTcp, kFake };

class Job {
 public:
  using Planner = std::function<void(int process, const PlanRequest& request)>;

  Job(int processes, Wire wire, uint32_t slot_bytes = 256, int channels = 2, int64_t patience_us = 20)
      : Job(processes, wire, EngineOptions{2, slot_bytes, 20, patience_us}, channels) {}
  // With `ring` only neighbours have control connections, as the processes of a job have that only plays rings.
  Job(int processes, Wire wire, const EngineOptions& options, int channels, bool ring = false);
  ~Job();

  Engine& engine(int process) { return simulation_ ? simulation_->engine(process) : *engines_[process]; }
  // Not of a fake.
  SystemNetwork& network(int process) { return engines_[process]->network(); }
  int processes() const { return processes_; }
  int channels() const { return channels_; }
  uint64_t NextKey() { return next_key_++; }
  // Sets the planner that answers the requests of sites with this spec.
  void Answer(const std::string& spec, Planner planner);
  // Does `arrive`, which has a participant arrive in that process.
  void Arrive(int process, const std::function<void()>& arrive) {
    simulation_ ? simulation_->Arrive(process, arrive) : arrive();
  }
  // Makes all processes, which are halted, begin a new epoch with new links.
  void Renew(uint64_t epoch);
  // Ends the control connection, as the death of a process does.
  void CutControl(int a, int b);
  // Sends process `to` a malformed frame over its control connection with `from`.
  void DamageControl(int from, int to);
  // Breaks the connections between two processes.
  void Cut(int a, int b);

 private:
  void Link();
  void Share(int from, int to, int channel);
  void Connect(int from, int to, int channel);
  void Control(int a, int b);
  void Plan(int process);
  void Answer(int process, const PlanRequest& request);

  const int processes_, channels_;
  const Wire wire_;
  const bool ring_;
  std::unique_ptr<VirtualTime> time_;
  std::unique_ptr<Simulation> simulation_;  // null where the engines are those of processes
  std::vector<std::unique_ptr<ProcessEngine>> engines_;
  std::vector<std::pair<std::pair<int, int>, int>> sockets_;
  std::map<std::pair<int, int>, int> controls_;
  std::mutex mutex_;
  std::map<std::string, Planner> answers_;
  std::atomic<uint64_t> next_key_{1};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> planners_;
};

// The settings that the Python planner adds to a schedule.
struct Settings {
  DType dtype = DType::kInt32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t divisor = 0;
  uint64_t block = 0;
  Protocol protocol = Protocol::kMemory;
  uint64_t tile = 48;
  uint64_t piece_bytes = 64;
  double timeout_s = 20;
  uint64_t key = 0;  // 0: a new key
  std::shared_ptr<const PlanEpilogue> epilogue = {};
  std::optional<PlanCodes> codes = {};

  // Bytes of an element of the output.
  size_t result_bytes() const { return epilogue ? epilogue->result->element_bytes : ElementBytes(dtype); }
};

std::shared_ptr<jaxring::Plan> MakePlan(const Schedule& schedule, const Settings& settings, int process, int channels);

// One call of a program, with a site in each process, planned at its first use.
class Call {
 public:
  Call(Job* job, const Schedule& schedule, Settings settings) : Call(job, schedule, std::move(settings), 60) {}
  Call(Job* job, const Schedule& schedule, Settings settings, double site_timeout_s);
  void Arrive(int rank, int64_t run, const void* in, void* out, Completion done,
              std::unique_ptr<Extents> extents = nullptr);
  // With an epilogue.
  void Arrive(int rank, int64_t run, const void* in, void* out, std::unique_ptr<EpilogueBuffers> epilogue,
              Completion done);
  // With a buffer for each block: the operand's, then the result's.
  void Arrive(int rank, int64_t run, std::unique_ptr<char*[]> blocks, Completion done);
  // Gives a process a new site for the call, as if it had compiled its program again.
  void MakeAgain(int process);
  std::shared_ptr<Site> site(int rank) { return sites_[schedule_.placement[rank]]; }
  std::string Describe() const;
  const Schedule& schedule() const { return schedule_; }
  const Settings& settings() const { return settings_; }

 private:
  Arrival ArrivalOf(int rank, int64_t run, const void* in, void* out, Completion done) const;

  Job* job_;
  const Schedule& schedule_;
  Settings settings_;
  std::vector<std::shared_ptr<Site>> sites_;
};

}  // namespace jaxring::test
