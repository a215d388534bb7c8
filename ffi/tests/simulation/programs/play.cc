#include "tests/simulation/programs/play.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/simulation/programs/program.h"

namespace jaxring::test {
namespace {

enum class Trouble : uint8_t { kNothing, kAbsent, kDisagree, kDies, kCut, kLeaves, kInterrupted, kHalted, kRefused };
const char* const kTroubles[] = {
    "nothing",          "a rank does not come", "a process disagrees", "a process dies",   "a cut",
    "a process leaves", "a process interrupts", "a process halts all", "a plan is refused"};
// Of 100 seeds.
constexpr unsigned kShares[] = {34, 10, 8, 12, 8, 8, 7, 7, 6};

// Moments in virtual time, in us. What is neither late nor stuck ends within `kPatience`.
constexpr int64_t kPatience = 15'000'000;
// So long after the first rank has failed in an execution, a rank that is in it has heard of that: a tick, and
// messages.
constexpr int64_t kHearsWithin = 70'000;

class Game {
 public:
  Game(VirtualTime* time, Played* played) : time_(*time), played_(*played), program_(time) {}

  void Play() {
    Choose();
    EngineOptions options;
    options.stepped = true;
    options.threads = static_cast<int>(1 + time_.Random(2));
    options.slot_bytes = Program::kSlotBytes;
    options.spin_us = time_.Chance(50) ? 0 : 20;
    options.patience_us = time_.Chance(50) ? 0 : 20;
    if (trouble_ == Trouble::kAbsent) {
      program_.set_limit(0.1 * static_cast<double>(1 + time_.Random(5)));
      if (time_.Chance(50)) program_.Spread();
    }
    simulation_ = std::make_unique<Simulation>(
        &time_, program_.processes(), options, Program::kChannels,
        [this](int process, const PlanRequest& request) { program_.Plan(process, request); }, connected_);
    program_.Begin(simulation_.get());
    program_.Launch();
    Begin();
    if (!simulation_->Run([this] { return program_.Ended(*simulation_); }, kPatience)) return Stuck();
    program_.CheckOutputs();
    for (const Execution& execution : program_.executions()) Judge(execution);
    if (trouble_ == Trouble::kHalted && played_.fault.empty()) GoOn();
    if (trouble_ == Trouble::kNothing || trouble_ == Trouble::kDisagree || trouble_ == Trouble::kInterrupted ||
        trouble_ == Trouble::kRefused) {
      Drain();
    }
  }

 private:
  // Chooses the trouble, and where it is.
  void Choose() {
    uint64_t share = time_.Random(100);
    size_t trouble = 0;
    while (share >= kShares[trouble]) share -= kShares[trouble++];
    trouble_ = static_cast<Trouble>(trouble);
    if (program_.processes() == 1 && trouble_ != Trouble::kAbsent && trouble_ != Trouble::kInterrupted)
      trouble_ = Trouble::kNothing;
    process_ = static_cast<int>(time_.Random(program_.processes()));
    if (time_.Chance(70)) connected_ = program_.Connected();
    if (trouble_ == Trouble::kDisagree) program_.Disagree(process_);
    if (trouble_ == Trouble::kRefused) {
      program_.Refuse(process_, 1 + time_.Random(2), Status::Error(Code::kResourceExhausted, "no memory for a link"));
    }
    if (trouble_ == Trouble::kAbsent) program_.Leave(static_cast<int>(time_.Random(program_.ranks())), time_.Random(3));
    played_.trouble = kTroubles[static_cast<size_t>(trouble_)];
  }

  // What happens at some moment.
  void Begin() {
    const int64_t moment = static_cast<int64_t>(time_.Random(time_.Chance(70) ? 600 : 4000));
    Engine& engine = simulation_->engine(process_);
    switch (trouble_) {
      case Trouble::kDies:
        return time_.At(moment, [this] { simulation_->Kill(process_); });
      case Trouble::kCut:
        ChooseCut();
        return time_.At(moment, [this] { simulation_->Cut(process_, other_); });
      case Trouble::kLeaves:
        return time_.At(
            moment,
            [this, &engine] {
              engine.Abort("it is ending", 0, true);
              time_.After(time_.Delay() * 100, [this] { simulation_->Kill(process_); });
            },
            true);
      case Trouble::kInterrupted:
        return time_.At(moment, [&engine] { engine.Interrupt("interrupted", Clock::now()); });
      case Trouble::kHalted:
        return time_.At(moment, [&engine] { engine.Halt("the job is rebuilt"); });
      default:
        return;
    }
  }

  void ChooseCut() {
    const uint64_t other = 1 + time_.Random(program_.processes() - 1);
    other_ = (process_ + static_cast<int>(other)) % program_.processes();
    if (connected_.empty()) return;
    auto pair = connected_.begin();
    std::advance(pair, time_.Random(connected_.size()));
    std::tie(process_, other_) = *pair;
  }

  void Stuck() {
    for (const Execution& execution : program_.executions()) {
      for (int rank = 0; rank < program_.ranks(); ++rank) {
        if (execution.ends[rank].arrived && execution.ends[rank].called == 0 &&
            !simulation_->dead(program_.process(rank))) {
          return Fault(execution, rank, "does not end");
        }
      }
    }
    played_.fault = "a rank never comes to its next execution";
  }

  void Fault(const Execution& execution, int rank, const std::string& what) {
    if (!played_.fault.empty()) return;
    played_.fault = program_.Describe(execution) + ": rank " + std::to_string(rank) + " " + what;
  }

  // Whether an error is right.
  bool Explains(const Execution& execution, int rank, const Status& status) const {
    const auto says = [&](const std::string& text) { return status.message.find(text) != std::string::npos; };
    const auto names = [&](int process) { return says("(process " + std::to_string(process) + ")"); };
    const bool own = program_.process(rank) == process_;
    switch (trouble_) {
      case Trouble::kNothing:
        return false;
      case Trouble::kAbsent:
        return (execution.call == 0 || program_.in_order() || program_.spread()) &&
               status.code == Code::kDeadlineExceeded &&
               (says("not finished") || says("came within the deadline") || says("no plan within the deadline"));
      case Trouble::kDisagree:
        return execution.call == 0 && status.code == Code::kInvalidArgument && says("The ranks disagree");
      case Trouble::kDies:
        return status.code == Code::kUnavailable && names(process_);
      case Trouble::kCut:
        return status.code == Code::kUnavailable && (names(process_) || names(other_));
      case Trouble::kLeaves:
        return own ? status.code == Code::kAborted && says("it is ending")
                   : status.code == Code::kUnavailable && names(process_);
      case Trouble::kInterrupted:
        return status.code == Code::kAborted && says("interrupted");
      case Trouble::kRefused:
        return execution.call == 0 && status.code == Code::kResourceExhausted && says("no memory for a link");
      case Trouble::kHalted:
        return status.code == Code::kAborted && says("the job is rebuilt");
    }
    return false;
  }

  // A failure reaches all that are in the execution, well before they would see it themselves.
  void JudgeSpread(const Execution& execution) {
    if (trouble_ == Trouble::kDies || trouble_ == Trouble::kCut || trouble_ == Trouble::kLeaves) return;
    // Of a fused call each operation is heard of by itself, and a rank's end waits for all of them.
    if (execution.data.size() > 1) return;
    int64_t first = INT64_MAX;
    for (const Execution::End& end : execution.ends) {
      if (end.called > 0 && !end.status.ok()) first = std::min(first, end.ended_at);
    }
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      const Execution::End& end = execution.ends[rank];
      if (end.called == 0 || end.status.ok()) continue;
      int64_t in_it = first;
      for (int other = 0; other < program_.ranks(); ++other) {
        if (program_.process(other) == program_.process(rank))
          in_it = std::max(in_it, execution.ends[other].arrived_at);
      }
      if (end.ended_at > in_it + kHearsWithin)
        Fault(execution, rank, "hears late of the failure: " + end.status.message);
    }
  }

  void Judge(const Execution& execution) {
    JudgeSpread(execution);
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      const Execution::End& end = execution.ends[rank];
      if (end.called > 1) Fault(execution, rank, "is completed twice");
      if (end.called == 0 || end.status.ok()) continue;
      ++played_.failures;
      if (!Explains(execution, rank, end.status)) {
        Fault(execution, rank, "fails though there is " + played_.trouble + ": " + end.status.message);
      }
    }
  }

  // After the halt all processes begin a new epoch, in which all succeeds.
  void GoOn() {
    const int64_t until = time_.now() + kPatience;
    const bool halted = simulation_->Run(
        [this] {
          for (int p = 0; p < simulation_->processes(); ++p) {
            if (!simulation_->engine(p).halting().halted()) return false;
          }
          return true;
        },
        until);
    if (!halted) {
      played_.fault = "a halt does not reach all processes";
      return;
    }
    while (!simulation_->Renew(1)) {
      if (time_.now() >= until) {
        played_.fault = "an operation does not end for a new epoch";
        return;
      }
      simulation_->Run([] { return false; }, time_.now() + 1000);
    }
    const size_t before = program_.executions().size();
    program_.Launch();
    if (!simulation_->Run([this] { return program_.Ended(*simulation_); }, until)) return Stuck();
    program_.CheckOutputs();
    trouble_ = Trouble::kNothing;
    played_.trouble = "a new epoch";
    for (size_t i = before; i < program_.executions().size(); ++i) Judge(program_.executions()[i]);
  }

  // No message and no credit is left over.
  void Drain() {
    if (!played_.fault.empty()) return;
    if (!simulation_->Run([this] { return simulation_->Left() == 0; }, time_.now() + 100'000)) {
      played_.fault = std::to_string(simulation_->Left()) + " messages, credits or bytes are left over";
    }
  }

  VirtualTime& time_;
  Played& played_;
  std::unique_ptr<Simulation> simulation_;
  Program program_;  // after that: its sites are of those engines
  Trouble trouble_ = Trouble::kNothing;
  Simulation::Pairs connected_;
  int process_ = 0, other_ = 0;
};

}  // namespace

Played Play(uint64_t seed, Mutation mutation, bool show) {
  Played played;
  VirtualTime time(seed, mutation);
  if (show) time.Show();
  Game(&time, &played).Play();
  played.hash = time.hash();
  played.wake_ups = time.count(Loss::kWakeUp);
  played.credits = time.count(Loss::kCredit);
  played.notices = time.count(Loss::kNotice);
  return played;
}

}  // namespace jaxring::test
