// Starts and finishes operations. Short ones run on the thread that brings their last participant.
#include <algorithm>
#include <utility>

#include "engine/calls/fused_call.h"
#include "engine/engine.h"
#include "engine/records/finite.h"
#include "engine/site.h"

namespace jaxring {
namespace {

// A small operation costs less than handing it to another thread (18 us across two cores), so the launching thread
// executes it to its end. The limit for ranks of this process, of all bytes that are read:
constexpr uint64_t kSmallMemoryBytes = 1 << 20;
// and between processes, of one rank's bytes. A worker that has to wake first may come later than all of their
// messages, and its delay makes the peers hand over, too:
constexpr uint64_t kSmallBytes = 1 << 20;
// A launching thread polls no longer than this: deadlines and reported failures are only checked for operations that
// were handed to workers.
constexpr auto kPollAtMost = std::chrono::seconds(1);

// The operation that this thread is launching. Its own participant may be completed on this thread.
thread_local const Operation* launching = nullptr;

}  // namespace

void Engine::Launch(std::span<Started> ops, bool help) {
  for (Started& op : ops) {
    if (saver_) saver_->Keep(*op);
    if (options_.non_finite != EngineOptions::NonFinite::kIgnore) ReportNonFinite(*op, NonFiniteOperand(*op));
  }
  const Operation::Home home = ops[0]->home;
  const std::shared_ptr<FusedCall> fused = ops[0]->fused;  // read before the operation ends and drops it
  launching = help && !fused ? ops[0].get() : nullptr;
  {
    CompletionPool::InCollective in_collective;
    Begin(ops, help);
  }
  launching = nullptr;
  // Before the ranks are completed, so that the next execution can reuse the operations.
  if (home.site != nullptr) home.site->TakeBack(home.group, ops);
  if (fused) fused->Launched();
}

void Engine::Begin(std::span<Started> ops, bool help) {
  counters_.operations += ops.size();
  active_.Begin(ops.size());
  for (Started& op : ops) FailRefused(*op);
  for (Started& op : ops) {
    if (op->lanes().empty()) Finish(op);
  }
  // Long operations first: workers execute them while this thread polls for the others' peers.
  auto is_long = [](const Started& op) {
    return op->plan().memory_only() && op->plan().in_bytes() * op->plan().group.ranks.size() > kSmallMemoryBytes;
  };
  const size_t count = std::partition(ops.begin(), ops.end(), is_long) - ops.begin();
  const auto work = ops.first(count), small = ops.subspan(count);
  HandOver(work);
  if (help && ExecuteHere(small)) {
    counters_.inline_operations += small.size();
  } else {
    HandOver(small);
  }
  if (!help) return;
  // All data of a memory operation is in this process, so that this thread works here and never waits.
  for (Started& op : ops) {
    while (op->plan().memory_only() && Execute(op)) {
    }
  }
}

void Engine::HandOver(std::span<Started> ops) {
  if (ops.empty()) return;
  const size_t lanes = active_.Add(ops, network_->failures());
  if (lanes == 0) return;
  workers_.Wake(lanes);
}

bool Engine::ExecuteHere(std::span<Started> ops) {
  uint64_t bytes = 0;
  // The handlers of other ranks of this process may need this thread.
  bool patient = counters_.in_flight.load(std::memory_order_relaxed) <= 1;
  // Polling costs nothing if the caller needs the result next, or if other processes use the CPUs meanwhile.
  const WaitPolicy& policy = workers_.waits().current();
  bool free = true;
  for (Started& op : ops) {
    patient &= op->plan().group.locals.size() == 1;
    free &= patient && op->participants().front().waits;
    bytes = std::max({bytes, op->plan().in_bytes(), op->plan().out_bytes()});
  }
  bool may_be_patient = patient && policy.patient_with == Patient::kSharedMemory;
  patient &= bytes <= kSmallBytes || free || policy.patient_with == Patient::kAll;
  Clock::time_point until{}, longest = Clock::time_point::max(), yielded{};
  struct Waiting {
    Engine* engine;
    bool polls = false;
    int cpu = -1;
    ~Waiting() {
      if (cpu >= 0) engine->network_->doorbell().ClearWaiter();
      if (polls) engine->network_->busy_pollers().End(engine->active_.count() > 0);
    }
  } waiting{this};
  for (int idle = 0;;) {
    bool moved = false, finished = true;
    for (Started& op : ops) {
      if (!op->finished()) moved |= Execute(op);
      finished &= op->finished();
    }
    if (finished) return true;
    if (moved) {
      idle = 0;
      until = {};
      continue;
    }
    // Only now, since an operation looks for its links when it needs them.
    if (std::exchange(may_be_patient, false) && !patient) {
      patient = std::ranges::all_of(ops, [](const Started& op) { return op->InSharedMemory(); });
    }
    if (patient && !waiting.polls && network_->busy_pollers().has_sources()) {
      waiting.polls = true;
      network_->busy_pollers().Begin();
    }
    if (++idle < policy.polls) continue;
    const auto now = Clock::now();
    if (until == Clock::time_point{}) {
      until = std::min(longest, now + (patient ? policy.patience : policy.spin));
      if (patient && waiting.cpu < 0) {
        longest = now + kPollAtMost;
        const Plan& plan = ops[0]->plan();
        const auto place =
            placement_.Begin(plan.group.process, ops[0]->key(), network_->doorbell(), network_->links(), now);
        counters_.moves += place.moved;
        waiting.cpu = place.cpu;
        yielded = now;
      }
    } else if (now >= until) {
      return false;
    }
    // With several operations, the peers' rings may be full of messages for operations that come later in this process.
    if (ops.size() > 1) workers_.TakeOverFullRings();
    if (now - yielded < policy.keep_cpu && waiting.cpu >= 0 && ops.size() == 1 && ops[0]->plan().sends_first &&
        !network_->links().AnyMayNeedCpu(waiting.cpu, ops[0]->key())) {
      continue;
    }
    Clock::Yield();
    yielded = now;
  }
}

void Engine::ReportNonFinite(Operation& op, const std::string& text) {
  if (text.empty()) return;
  if (options_.non_finite == EngineOptions::NonFinite::kFail) {
    op.Fail(Status::Error(Code::kFailedPrecondition, text));
    return;
  }
  if (warnings_.AddOnce(op.plan().key, text)) op.non_finite_text = text;
}

void Engine::Finish(const std::shared_ptr<Operation>& op) {
  if (options_.non_finite != EngineOptions::NonFinite::kIgnore && !op->failed())
    ReportNonFinite(*op, NonFiniteResult(*op));
  if (op->handed_over) active_.Remove(op);
  if (!op->plan().alone()) {
    uint64_t sent = 0;
    for (auto& lane : op->lanes()) sent += std::exchange(lane->sent_bytes, 0);
    counters_.sent_bytes.fetch_add(sent, std::memory_order_relaxed);
  }
  Status status = op->failed() ? op->status() : Status{};
  if (saver_ && (op->failed() || !op->non_finite_text.empty())) {
    std::string trouble = saver_->Save(*op, op->failed() ? status.message : op->non_finite_text);
    if (!trouble.empty()) warnings_.Add(std::move(trouble));
  }
  recorder_.End(op->record, op->failed());
  if (op->failed()) {
    counters_.failures++;
    // A process that aborts reports itself once, not each of its operations.
    if (!op->plan().alone() && !halting_.halted()) {
      network_->BroadcastFailure(op->key(), status, op->plan().group.process);
    }
    network_->unexpected().Discard(op->key());
    if (op->owned_input) sites_.KeepFailure(op->plan().key, status);
  }
  active_.End();
  const bool here = launching == op.get();
  std::vector<CompletionPool::Work> elsewhere;
  Completion own;
  for (Participant& participant : op->participants()) {
    if (!participant.done) continue;
    Completion done = std::move(participant.done);
    participant.done = nullptr;
    if (participant.done_is_quick) {
      done(status);
    } else if (here && participant.on_launching_thread) {
      own = std::move(done);
    } else {
      elsewhere.push_back([done = std::move(done), status] { done(status); });
    }
  }
  completions_.PostAll(&elsewhere);
  if (own) own(status);
  if (op->fused) std::exchange(op->fused, nullptr)->End(status);
}

}  // namespace jaxring
