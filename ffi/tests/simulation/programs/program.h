// The program that a seed chooses: calls of one placement of ranks, and an order of their executions for each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/simulation.h"
#include "tests/support/job.h"
#include "tests/support/schedules.h"
#include "tests/support/values.h"

namespace jaxring::test {

struct Execution {
  size_t call;
  int64_t run;
  struct Data {
    std::vector<Buffer> inputs, outputs;  // of each rank
  };
  std::vector<Data> data;  // of each collective of the call
  struct End {
    bool arrived = false;
    int64_t arrived_at = 0, ended_at = 0;
    int called = 0;
    Status status;
  };
  std::vector<End> ends{};  // of each rank
};

class Program {
 public:
  explicit Program(VirtualTime* time);

  int processes() const { return first().processes(); }
  int ranks() const { return first().ranks(); }
  int process(int rank) const { return first().placement[rank]; }
  static constexpr int kChannels = 2;
  static constexpr uint32_t kSlotBytes = 256;
  // Seconds until an operation fails.
  double limit_s() const { return limit_s_; }
  void set_limit(double seconds) { limit_s_ = seconds; }
  // That process has another length for the first call than the others.
  void Disagree(int process) { disagrees_ = process; }
  // That process refuses so many plans of the first call, for a reason.
  void Refuse(int process, uint64_t times, Status reason) {
    refuses_ = process;
    refusals_ = times;
    reason_ = std::move(reason);
  }

  // Makes the sites, and the planner that answers them.
  void Begin(Simulation* simulation);
  void Plan(int process, const PlanRequest& request);
  // Has all ranks arrive at all executions, each at its own time. A rank goes on to the next one when the one before
  // has ended, or, where the program is not `in_order`, without waiting and in an order of its own.
  void Launch();
  // Ranks begin up to half a second apart.
  void Spread() { spread_ = true; }
  bool spread() const { return spread_; }
  // A rank does not arrive any more from that execution on: of the program, or, where that is not in order, of the
  // first call.
  void Leave(int rank, size_t from) { absent_ = rank, absent_from_ = from; }
  bool in_order() const { return in_order_; }
  // The processes that send each other messages, the lower one first; empty where these do not connect all.
  Simulation::Pairs Connected() const;

  const std::vector<Execution>& executions() const { return executions_; }
  bool Ended(const Simulation& simulation) const;
  // "all_reduce ring 2x2 x1, ..., execution 3".
  std::string Describe(const Execution& execution) const;
  // Checks the outputs of the ranks that have succeeded.
  void CheckOutputs() const;

 private:
  const Schedule& first() const { return *calls_[0].collectives[0].schedule; }
  struct Collective {
    const Schedule* schedule;
    Settings settings;
  };
  // One, or several that are fused.
  struct Made {
    std::vector<Collective> collectives;
    std::vector<std::shared_ptr<Site>> sites;  // of each process
  };
  Settings SettingsOf(size_t call, size_t collective, int process) const;
  bool Absent(int rank, size_t number) const {
    if (rank != absent_) return false;
    if (in_order_) return number >= absent_from_;
    return executions_[number].call == 0 && static_cast<size_t>(executions_[number].run) >= absent_from_;
  }
  void Arrive(int rank, size_t execution);
  void Next(int rank, size_t place);

  VirtualTime& time_;
  Simulation* simulation_ = nullptr;
  std::vector<Made> calls_;
  std::vector<Execution> executions_;
  std::vector<std::vector<size_t>> orders_;  // of each rank
  size_t launched_ = 0;
  bool in_order_;
  double limit_s_ = 20;
  bool spread_ = false;
  int disagrees_ = -1, absent_ = -1, refuses_ = -1;
  uint64_t refusals_ = 0;
  Status reason_;
  size_t absent_from_ = 0;
};

}  // namespace jaxring::test
