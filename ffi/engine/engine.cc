#include "engine/engine.h"

#include <algorithm>

#include "engine/signals/signals.h"
#include "engine/site.h"

namespace jaxring {
namespace {

constexpr int kLaneBudget = 64;
// A process that ends in good order waits at most so long for connections that go on over another path.
constexpr auto kSettle = std::chrono::seconds(2);

}  // namespace

Engine::Engine(EngineOptions options, const MakeNetwork& make_network)
    : options_(std::move(options)),
      client_(this),
      network_(make_network(&client_)),
      interpreter_(
          &network_->links(), &network_->unexpected(),
          [this](const Operation& op, int self, int peer, const LinkEnd& end) { return Loss(op, self, peer, end); },
          options_.checksums),
      completions_(options_.stepped),
      recorder_(options_.trace_file, !options_.stepped),
      saver_(options_.operand_bytes == 0
                 ? nullptr
                 : std::make_unique<OperandSaver>(options_.operand_files, options_.operand_bytes)),
      reporter_(&network_->peers(), &recorder_),
      stalls_(&reporter_, options_.stall_warning_s),
      workers_(options_.threads, options_.stepped, std::chrono::microseconds(options_.spin_us),
               std::chrono::microseconds(options_.patience_us), network_.get(), &active_, &counters_,
               [this](const std::shared_ptr<Operation>& op) { return Execute(op); }) {
  network_->Start();
}

Engine::~Engine() { StopThreads(); }

void Engine::StopThreads() {
  python_.Close();
  network_->EndPaths();
  workers_.Stop();
  network_->Stop();
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

void Engine::OnTick() {
  if (counters_.in_flight.load(std::memory_order_relaxed) > 0) WatchSignalsAgain();
  workers_.waits().Choose(network_->links().WaiterCpus({}));
  // First, since it may wait. An operation of the list was handed over before the reason is read: one that begins after
  // a halt is over must not fail by it.
  const std::vector<int> settled = network_->Check(Clock::now());
  const std::set<int> left(settled.begin(), settled.end());
  const auto now = Clock::now();
  const ActiveOperations::List active = active_.Get();
  const std::optional<std::string> halted = halting_.Reason();
  const std::map<int, Crash> crashes = network_->peers().Crashes();
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
  if (late) network_->doorbell().NotifyAll();
  const std::optional<std::string> still_halted = halting_.Reason();
  sites_.CheckDeadlines(now, still_halted ? &*still_halted : nullptr);
}

bool Engine::WarnOfStalls(Clock::time_point now) {
  if (!stalls_.IsDue(now)) return false;
  if (auto warning = stalls_.Look(now, active_.Get(), sites_.Waiting(now))) python_.AddStall(*std::move(warning));
  return stalls_.has_examined();
}

void Engine::Confirm(ProgramLatch& latch, int process) {
  if (latch.Confirm(process)) network_->doorbell().NotifyAll();
}

void Engine::Abort(const std::string& reason, double timeout_s, bool goodbye, const std::string& how) {
  if (!halting_.End(reason)) return;
  python_.Close();
  const bool idle = active_.count() == 0;
  // Tells waiting peers what this process is doing now: its last heartbeat may be half a second old. A tick at this
  // moment may have the watched sites in its hands, so that their executions are missing; the peers learn from the next
  // frame that this process ends.
  network_->peers().TellAll(Heartbeat(Clock::now()), -1);
  if (!idle || !goodbye) {
    network_->peers().SayLeaving(std::string(idle ? "it is ending" : "it is ending with operations in flight") + how,
                                 idle ? Ending::kReportedErrorIdle : Ending::kReportedError);
  }
  network_->Kick();
  auto until = Clock::now() + std::chrono::duration<double>(timeout_s);
  while (active_.count() != 0 && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // A process that abandons operations does not end in good order: its peers still need its part.
  if (!idle) return network_->EndPaths();
  // Sent before the links' goodbyes, which only say that no more data comes. This frame says how the process ended.
  if (goodbye) {
    ControlFrame goodbye_frame;
    goodbye_frame.kind = ControlFrame::Kind::kGoodbye;
    goodbye_frame.text = "it has ended" + (how.empty() ? " in good order" : how);
    network_->peers().TellAll(goodbye_frame, -1);
  }
  network_->SayGoodbyes();
  // Connections may have to go on over another path to bring the last of it.
  const auto settled_by = Clock::now() + kSettle;
  while (goodbye && !network_->Settled() && Clock::now() < settled_by) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  network_->EndPaths();
}

bool Engine::NextRequest(double timeout_s, PlanRequest* request) {
  if (network_->peers().HasPeers()) resources_.ReadDelays(Clock::now());
  return python_.NextRequest(timeout_s, request);
}

}  // namespace jaxring
