#include "tests/simulation/programs/play.h"

#include <algorithm>
#include <initializer_list>
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
// So long after the first rank has failed in an execution, a rank of a process that has begun it has learned of it:
// messages. Where a rank of its process has not arrived it may take a tick, too.
constexpr int64_t kLearnsWithin = 15'000, kWaitingLearnsWithin = 70'000;
// So long after the last rank has arrived, an execution without trouble has ended, whatever others wait for.
constexpr int64_t kEndsWithin = 50'000;

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
    simulation_ = std::make_unique<Simulation>(
        &time_, program_.processes(), options, Program::kChannels,
        [this](int process, const PlanRequest& request) { program_.Plan(process, request); }, connected_);
    program_.Begin(simulation_.get());
    program_.Launch();
    for (const Happening& happening : happenings_) Begin(happening);
    if (!simulation_->Run([this] { return program_.Ended(*simulation_); }, kPatience)) return Stuck();
    program_.CheckOutputs();
    for (const Execution& execution : program_.executions()) Judge(execution);
    if (!played_.fault.empty()) return;
    if (Any({Trouble::kHalted})) GoOn();
    if (!Any({Trouble::kAbsent, Trouble::kDies, Trouble::kCut, Trouble::kLeaves, Trouble::kHalted})) Drain();
  }

 private:
  // Something that goes wrong, by itself or beside another thing.
  struct Happening {
    Trouble trouble = Trouble::kNothing;
    int process = 0, other = 0;
  };

  // Chooses what goes wrong, and where.
  void Choose() {
    if (time_.Chance(70)) connected_ = program_.Connected();
    Add(static_cast<Trouble>(Share()));
    // Some troubles come together with a second one.
    const Trouble first = happenings_.front().trouble;
    if (first == Trouble::kNothing || first == Trouble::kHalted || !time_.Chance(25)) return;
    static constexpr Trouble kSeconds[] = {Trouble::kDies, Trouble::kCut, Trouble::kLeaves, Trouble::kInterrupted};
    const Trouble second = kSeconds[time_.Random(4)];
    if (second != first && program_.processes() > 1) Add(second);
  }
  size_t Share() {
    uint64_t share = time_.Random(100);
    size_t trouble = 0;
    while (share >= kShares[trouble]) share -= kShares[trouble++];
    return trouble;
  }
  void Add(Trouble trouble) {
    if (program_.processes() == 1 && trouble != Trouble::kAbsent && trouble != Trouble::kInterrupted &&
        trouble != Trouble::kRefused) {
      trouble = Trouble::kNothing;
    }
    Happening happening{trouble, static_cast<int>(time_.Random(program_.processes()))};
    if (trouble == Trouble::kCut) ChooseCut(&happening);
    if (trouble == Trouble::kDisagree) program_.Disagree(happening.process);
    if (trouble == Trouble::kRefused) {
      const Status reason = Status::Error(Code::kResourceExhausted, "no memory for a link");
      program_.Refuse(happening.process, 1 + time_.Random(2), reason);
    }
    if (trouble == Trouble::kAbsent) {
      program_.Leave(static_cast<int>(time_.Random(program_.ranks())), time_.Random(3));
      program_.set_limit(0.1 * static_cast<double>(1 + time_.Random(5)));
      if (time_.Chance(50)) program_.Spread();
    }
    happenings_.push_back(happening);
    played_.trouble += (played_.trouble.empty() ? "" : " and ") + std::string(kTroubles[static_cast<size_t>(trouble)]);
  }
  void ChooseCut(Happening* cut) {
    const uint64_t other = 1 + time_.Random(program_.processes() - 1);
    cut->other = (cut->process + static_cast<int>(other)) % program_.processes();
    if (connected_.empty()) return;
    auto pair = connected_.begin();
    std::advance(pair, time_.Random(connected_.size()));
    std::tie(cut->process, cut->other) = *pair;
  }
  bool Any(std::initializer_list<Trouble> troubles) const {
    return std::any_of(happenings_.begin(), happenings_.end(), [&](const Happening& each) {
      return std::find(troubles.begin(), troubles.end(), each.trouble) != troubles.end();
    });
  }

  // What happens at some moment.
  void Begin(const Happening& happening) {
    const int64_t moment = static_cast<int64_t>(time_.Random(time_.Chance(70) ? 600 : 4000));
    const int process = happening.process, other = happening.other;
    Engine& engine = simulation_->engine(process);
    switch (happening.trouble) {
      case Trouble::kDies:
        return time_.At(moment, [=, this] { simulation_->Kill(process); });
      case Trouble::kCut:
        return time_.At(moment, [=, this] { simulation_->Cut(process, other); });
      case Trouble::kLeaves:
        return time_.At(
            moment,
            [=, this, &engine] {
              if (simulation_->dead(process)) return;
              engine.Abort("it is ending", 0, true);
              time_.After(time_.Delay() * 100, [=, this] { simulation_->Kill(process); });
            },
            true);
      case Trouble::kInterrupted:
        return time_.At(moment, [=, this, &engine] {
          if (!simulation_->dead(process)) engine.Interrupt("interrupted", Clock::now());
        });
      case Trouble::kHalted:
        return time_.At(moment, [&engine] { engine.Halt("the job is rebuilt"); });
      default:
        return;
    }
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
  bool Explains(const Happening& happening, const Execution& execution, int rank, const Status& status) const {
    const auto says = [&](const std::string& text) { return status.message.find(text) != std::string::npos; };
    const auto names = [&](int process) { return says("(process " + std::to_string(process) + ")"); };
    const bool own = program_.process(rank) == happening.process;
    switch (happening.trouble) {
      case Trouble::kNothing:
        return false;
      case Trouble::kAbsent:
        return (execution.call == 0 || program_.in_order() || program_.spread()) &&
               status.code == Code::kDeadlineExceeded &&
               (says("not finished") || says("came within the deadline") || says("no plan within the deadline"));
      case Trouble::kDisagree:
        return execution.call == 0 && status.code == Code::kInvalidArgument && says("The ranks disagree");
      case Trouble::kDies:
        return status.code == Code::kUnavailable && names(happening.process);
      case Trouble::kCut:
        return status.code == Code::kUnavailable && (names(happening.process) || names(happening.other));
      case Trouble::kLeaves:
        return own ? status.code == Code::kAborted && says("it is ending")
                   : status.code == Code::kUnavailable && names(happening.process);
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
    if (Any({Trouble::kDies, Trouble::kCut, Trouble::kLeaves})) return;
    // Each operation of a fused call is reported by itself, and a rank's end waits for all of them.
    if (execution.data.size() > 1) return;
    int64_t first = INT64_MAX;
    for (const Execution::End& end : execution.ends) {
      if (end.called > 0 && !end.status.ok()) first = std::min(first, end.ended_at);
    }
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      const Execution::End& end = execution.ends[rank];
      if (end.called == 0 || end.status.ok()) continue;
      int64_t in_it = first;
      bool begun = !Any({Trouble::kHalted});  // ticks tell operations of a halt
      for (int other = 0; other < program_.ranks(); ++other) {
        if (program_.process(other) != program_.process(rank)) continue;
        in_it = std::max(in_it, execution.ends[other].arrived_at);
        begun &= execution.ends[other].arrived;
      }
      if (end.ended_at > in_it + (begun ? kLearnsWithin : kWaitingLearnsWithin))
        Fault(execution, rank, "learns late of the failure: " + end.status.message);
    }
  }

  // Without trouble no execution waits for another one.
  void JudgeSpeed(const Execution& execution) {
    if (happenings_.empty() || happenings_.front().trouble != Trouble::kNothing) return;
    int64_t arrived = 0;
    for (const Execution::End& end : execution.ends) arrived = std::max(arrived, end.arrived_at);
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      const int64_t took = execution.ends[rank].ended_at - arrived;
      if (took > kEndsWithin) Fault(execution, rank, "ends " + std::to_string(took) + " us after all have arrived");
    }
  }

  void Judge(const Execution& execution) {
    JudgeSpread(execution);
    JudgeSpeed(execution);
    for (int rank = 0; rank < program_.ranks(); ++rank) {
      const Execution::End& end = execution.ends[rank];
      if (end.called > 1) Fault(execution, rank, "is completed twice");
      if (end.called == 0 || end.status.ok()) continue;
      ++played_.failures;
      const bool explained = std::any_of(happenings_.begin(), happenings_.end(), [&](const Happening& each) {
        return Explains(each, execution, rank, end.status);
      });
      if (!explained) {
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
    happenings_.clear();
    played_.trouble = "a new epoch";
    for (size_t i = before; i < program_.executions().size(); ++i) Judge(program_.executions()[i]);
  }

  // No message and no credit is left over.
  void Drain() {
    const bool blocks = happenings_.empty() || happenings_.front().trouble == Trouble::kNothing;
    const auto none = [&] { return simulation_->Left() == 0 && (!blocks || simulation_->HeldSharedBlocks() == 0); };
    if (!simulation_->Run(none, time_.now() + 100'000)) {
      played_.fault = std::to_string(simulation_->Left()) + " messages, credits or bytes are left over";
    }
  }

  VirtualTime& time_;
  Played& played_;
  std::unique_ptr<Simulation> simulation_;
  Program program_;  // after that: its sites are of those engines
  std::vector<Happening> happenings_;
  Simulation::Pairs connected_;
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
