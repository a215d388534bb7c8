// The engines of a job's processes in one thread and virtual time, on fake networks: their workers, ticks, completions
// and planners take turns, as a seed says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/simulation/fake_network.h"
#include "tests/simulation/virtual_time.h"

namespace jaxring::test {

class Simulation {
 public:
  using Pairs = std::set<std::pair<int, int>>;  // the lower one first
  using Planner = std::function<void(int process, const PlanRequest& request)>;

  // `options` must be stepped. `connected`: which processes are connected with each other; none given: all.
  Simulation(VirtualTime* time, int processes, const EngineOptions& options, int channels, Planner planner,
             Pairs connected = {});

  VirtualTime& time() { return time_; }
  int processes() const { return static_cast<int>(processes_.size()); }
  Engine& engine(int process) { return *processes_[process].engine; }
  bool dead(int process) const { return processes_[process].dead; }

  // Does `arrive`, which has a participant arrive in that process, and answers what its site asks for.
  void Arrive(int process, const VirtualTime::Event& arrive);
  // Lets events happen until `done`. False if it is not until that moment.
  bool Run(const std::function<bool()>& done, int64_t until);
  // A process ends here and now: others find out by its connections.
  void Kill(int process);
  // Two processes lose each other.
  void Cut(int a, int b);
  // All processes, which are halted, begin a new epoch with new connections. False if an operation has not ended.
  bool Renew(uint64_t epoch);
  // Messages that have not arrived or are still waiting, and credits that are not back, of all processes.
  size_t Left() const;
  // Blocks of shared memory that messages are in, of this epoch. Those of failed operations stay until a ring is full.
  uint32_t HeldSharedBlocks() const;

 private:
  struct Process {
    FakeNetwork* network = nullptr;
    std::shared_ptr<SharedBlockPool> blocks{};  // of this epoch
    std::unique_ptr<Engine> engine;
    std::vector<Workers::Worker> workers;
    bool dead = false;
  };
  void Connect();
  // A worker looks for work.
  void Look(int process, size_t worker);
  void Plan(int process);

  VirtualTime& time_;
  const int channels_;
  const Planner planner_;
  const Pairs connected_;
  const unsigned shared_;  // of 100 links
  std::vector<Process> processes_;
};

}  // namespace jaxring::test
