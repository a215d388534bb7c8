#include "engine/engine.h"

#include <sched.h>

#include <algorithm>

#include "engine/signals/signals.h"
#include "engine/site.h"

namespace jaxring {
namespace {

constexpr int kLaneBudget = 64;
// A process that ends in good order waits at most so long for connections that go on over another path.
constexpr auto kSettle = std::chrono::seconds(2);
// A worker with operations in flight wakes up after this time even if the doorbell did not ring.
constexpr int64_t kSleepUs = 100000, kIdleUs = 10000000;

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      network_({options_.slot_bytes, options_.link_timeout_s, options_.faults}, this),
      idle_(Doorbell::Create()),
      interpreter_(
          &network_.links(), &network_.unexpected(),
          [this](const Operation& op, int self, int peer, const LinkEnd& end) { return Loss(op, self, peer, end); },
          options_.checksums),
      recorder_(options_.trace_file),
      saver_(options_.operand_bytes == 0
                 ? nullptr
                 : std::make_unique<OperandSaver>(options_.operand_files, options_.operand_bytes)),
      reporter_(&network_.peers(), &recorder_),
      stalls_(&reporter_, options_.stall_warning_s),
      waits_(std::chrono::microseconds(options_.spin_us), std::chrono::microseconds(options_.patience_us)) {
  try {
    network_.Start();
    for (int i = 0; i < options_.threads; ++i) workers_.emplace_back([this] { Work(); });
  } catch (...) {
    StopThreads();  // they use members that are about to be destroyed
    throw;
  }
}

Engine::~Engine() { StopThreads(); }

void Engine::StopThreads() {
  stop_ = true;
  python_.Close();
  network_.paths().Close();
  network_.doorbell().NotifyAll();
  idle_->NotifyAll();
  for (auto& worker : workers_) worker.join();
  network_.Stop();
}

bool Engine::Execute(const std::shared_ptr<Operation>& op) {
  if (op->plan().held_back() && !op->failed()) return false;
  bool moved = false;
  for (auto& lane : op->lanes()) {
    if (lane->busy.load(std::memory_order_relaxed) || lane->busy.exchange(true, std::memory_order_acquire)) continue;
    if (lane->done) {
      lane->busy.store(false, std::memory_order_release);
      continue;
    }
    Progress progress = interpreter_.Advance(*op, *lane, kLaneBudget);
    lane->busy.store(false, std::memory_order_release);
    if (progress != Progress::kBlocked) moved = true;
    if (progress == Progress::kDone && op->LaneDone()) Finish(op);
  }
  return moved;
}

void Engine::Work() {
  ActiveOperations::List ops;
  uint64_t seen_version = ~uint64_t{0};
  auto last_progress = Clock::now();
  while (!stop_) {
    const uint32_t rung = network_.doorbell().Value(), called = idle_->Value();
    if (active_.version() != seen_version) ops = active_.Get(&seen_version);
    bool moved = false;
    for (auto& op : ops) {
      while (Execute(op)) moved = true;
    }
    if (moved) {
      last_progress = Clock::now();
      continue;
    }
    if (!ops.empty()) TakeOverFullRings();
    if (!ops.empty() && Clock::now() - last_progress < waits_.current().spin) {
      sched_yield();
      continue;
    }
    // Finished operations must not keep buffers alive while this worker sleeps.
    if (active_.count() == 0) {
      ops.clear();
      seen_version = ~uint64_t{0};
    }
    counters_.sleeps++;
    if (!ops.empty()) network_.busy_pollers().EnableEvents();
    ops.empty() ? idle_->Wait(called, kIdleUs) : network_.doorbell().Wait(rung, kSleepUs);
    last_progress = Clock::now();
  }
}

void Engine::OnTick() {
  if (counters_.in_flight.load(std::memory_order_relaxed) > 0) WatchSignalsAgain();
  waits_.Choose(network_.links().WaiterCpus({}));
  // First, since it may wait. An operation of the list was handed over before the reason is read: one that begins after
  // a halt is over must not fail by it.
  const std::vector<int> settled = network_.Check(Clock::now());
  const std::set<int> left(settled.begin(), settled.end());
  const auto now = Clock::now();
  const ActiveOperations::List active = active_.Get();
  const std::optional<std::string> halted = halting_.Reason();
  const std::map<int, Crash> crashes = network_.peers().Crashes();
  bool late = false;
  for (auto& op : active) {
    if (halted) op->Fail(Status::Error(Code::kAborted, op->What() + ": " + *halted));
    if (!crashes.empty()) FailCrashed(*op, crashes, now);
    if (!left.empty()) FailLeft(*op, left);
    if (op->plan().held_back()) OpenLatchIfPeersLeft(*op->plan().latch, left);
    if (now >= op->deadline() && !op->failed()) {
      if (const std::optional<Status> failure = reporter_.Late(*op, now)) op->Fail(*failure);
    }
    late |= op->failed();
  }
  SendHeartbeats(now);
  late |= WarnOfStalls(now);
  if (late) network_.doorbell().NotifyAll();
  const std::optional<std::string> still_halted = halting_.Reason();
  sites_.CheckDeadlines(now, still_halted ? &*still_halted : nullptr);
}

bool Engine::WarnOfStalls(Clock::time_point now) {
  if (!stalls_.IsDue(now)) return false;
  if (auto warning = stalls_.Look(now, active_.Get(), sites_.Waiting(now))) python_.AddStall(*std::move(warning));
  return stalls_.has_examined();
}

void Engine::TakeOverFullRings() {
  if (const uint64_t taken = network_.unexpected().TakeOver(network_.links())) counters_.spills += taken;
}

void Engine::Confirm(ProgramLatch& latch, int process) {
  if (latch.Confirm(process)) network_.doorbell().NotifyAll();
}

void Engine::Abort(const std::string& reason, double timeout_s, bool goodbye, const std::string& how) {
  if (!halting_.End(reason)) return;
  python_.Close();
  const bool idle = active_.count() == 0;
  // Tells waiting peers what this process is doing now: its last heartbeat may be half a second old. A tick at this
  // moment may have the watched sites in its hands, so that their executions are missing; the peers learn from the next
  // frame that this process ends.
  network_.peers().TellAll(Heartbeat(Clock::now()), -1);
  if (!idle || !goodbye) {
    network_.peers().SayLeaving(std::string(idle ? "it is ending" : "it is ending with operations in flight") + how,
                                idle ? Ending::kReportedErrorIdle : Ending::kReportedError);
  }
  network_.Kick();
  auto until = Clock::now() + std::chrono::duration<double>(timeout_s);
  while (active_.count() != 0 && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // A process that abandons operations does not end in good order: its peers still need its part.
  if (!idle) return network_.paths().Close();
  // Sent before the links' goodbyes, which only say that no more data comes. This frame says how the process ended.
  if (goodbye) {
    ControlFrame goodbye_frame;
    goodbye_frame.kind = ControlFrame::Kind::kGoodbye;
    goodbye_frame.text = "it has ended" + (how.empty() ? " in good order" : how);
    network_.peers().TellAll(goodbye_frame, -1);
  }
  network_.SayGoodbyes();
  // Connections may have to go on over another path to bring the last of it.
  const auto settled_by = Clock::now() + kSettle;
  while (goodbye && !network_.paths().Settled() && Clock::now() < settled_by) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  network_.paths().Close();
}

bool Engine::NextRequest(double timeout_s, PlanRequest* request) {
  if (network_.peers().HasPeers()) resources_.ReadDelays(Clock::now());
  return python_.NextRequest(timeout_s, request);
}

}  // namespace jaxring
