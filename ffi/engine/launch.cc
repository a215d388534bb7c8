// How operations begin and end: on the thread that brings their last participant if they are short.
#include <sched.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/cpu_placement.h"
#include "engine/engine.h"
#include "engine/fused_call.h"
#include "engine/records/finite.h"
#include "engine/site.h"

namespace jaxring {
namespace {

// Small: the whole operation costs less than handing it to another thread (18 us across two cores), so the thread that
// launches it plays it to its end. For ranks of this process, all bytes that are read:
constexpr uint64_t kSmallMemoryBytes = 1 << 20;
// between processes, one rank's:
constexpr uint64_t kSmallBytes = 64 << 10;
// Looks before the first sched_yield (0.3 us and more): what a running peer sends arrives within these, 5 us or so, and
// is seen a little sooner than between two yields. Where processes outnumber processors the peer may be waiting for
// this one's: 4 processes on 2 take half the time.
constexpr int kPollsBeforeYield = 128, kCrowdedPollsBeforeYield = 2;
// How many times as long a launching thread waits there. What goes through workers is woken three times, each time
// behind peers that yield to each other (0.4 ms were seen), which makes them hand over, too: one delay would last for a
// thousand operations.
constexpr int kCrowdedPatienceFactor = 10;
// How long at most it keeps its processor there where all who share that have sent their part of the operation, too,
// and wait: to yield to them costs two switches, and nobody is further.
constexpr auto kKeepCpuFor = std::chrono::microseconds(50);
// Who looks after deadlines and failures that are told sees only what workers play.
constexpr auto kPollAtMost = std::chrono::seconds(1);
// How long a launching thread that shares a processor does not think of leaving it again.
constexpr auto kMoveInterval = std::chrono::milliseconds(5);

// The operation that this thread is launching: its own participant may be completed without another thread.
thread_local const Operation* launching = nullptr;

}  // namespace

void Engine::Launch(std::span<Started> ops, bool help) {
  for (Started& op : ops) {
    if (saver_) saver_->Keep(*op);
    if (options_.non_finite != EngineOptions::NonFinite::kIgnore) ReportNonFinite(*op, NonFiniteOperand(*op));
  }
  const Operation::Home home = ops[0]->home;
  const std::shared_ptr<FusedCall> fused = ops[0]->fused;  // before it ends
  launching = help && !fused ? ops[0].get() : nullptr;
  {
    CompletionPool::Playing playing;
    Begin(ops, help);
  }
  launching = nullptr;
  // Before the ranks are let go on: the next execution finds them.
  if (home.site != nullptr) home.site->TakeBack(home.group, ops);
  if (fused) fused->Launched();
}

void Engine::Begin(std::span<Started> ops, bool help) {
  counters_.operations += ops.size();
  unfinished_ += static_cast<int>(ops.size());
  for (Started& op : ops) FailRefused(*op);
  for (Started& op : ops) {
    if (op->lanes().empty()) Finish(op);
  }
  // Long ones first: the workers have them while this thread sees to those that wait for peers.
  auto is_long = [](const Started& op) {
    return op->plan().memory_only() && op->plan().in_bytes() * op->plan().ranks.size() > kSmallMemoryBytes;
  };
  const size_t count = std::partition(ops.begin(), ops.end(), is_long) - ops.begin();
  const auto work = ops.first(count), small = ops.subspan(count);
  HandOver(work);
  if (help && PlayHere(small)) {
    counters_.inline_operations += small.size();
  } else {
    HandOver(small);
  }
  if (!help) return;
  // All of a memory operation's data is here, so helping is work and no wait.
  for (Started& op : ops) {
    while (op->plan().memory_only() && Play(op)) {
    }
  }
}

void Engine::HandOver(std::span<Started> ops) {
  size_t lanes = 0;
  {
    std::lock_guard lock(mutex_);
    for (Started& op : ops) {
      if (op->finished()) continue;
      op->handed_over = true;
      lanes += op->lanes().size();
      // A failure that is told from now on finds the operation among the active ones.
      if (auto told = known_failures_.find(op->key()); told != known_failures_.end()) op->Fail(told->second);
      active_.push_back(op);
      active_count_.fetch_add(1, std::memory_order_release);
    }
    if (lanes == 0) return;
    version_.fetch_add(1, std::memory_order_release);
  }
  WakeWorkers(static_cast<int>(std::min(lanes, workers_.size())));
}

bool Engine::PlayHere(std::span<Started> ops) {
  uint64_t bytes = 0;
  // With other ranks of this process in flight, their handlers may need this thread.
  bool patient = counters_.in_flight.load(std::memory_order_relaxed) <= 1;
  // This thread can do nothing better than to play: its caller wants the end first, or others have the processors.
  const bool crowded = crowded_.load(std::memory_order_relaxed);
  bool free = true;
  for (Started& op : ops) {
    patient &= op->plan().locals.size() == 1;
    free &= patient && op->participants().front().waits;
    bytes = std::max({bytes, op->plan().in_bytes(), op->plan().out_bytes()});
  }
  patient &= bytes <= kSmallBytes || free || crowded;
  Clock::time_point until{}, longest = Clock::time_point::max(), yielded{};
  struct Waiting {
    Engine* engine;
    bool looks = false;
    int seat = -1;
    ~Waiting() {
      if (seat >= 0) engine->bell_->Rise();
      if (looks) engine->lookers_.End(engine->active_count_.load(std::memory_order_seq_cst) > 0);
    }
  } waiting{this};
  const int looks = crowded ? kCrowdedPollsBeforeYield : kPollsBeforeYield;
  const int64_t patience_us = crowded ? kCrowdedPatienceFactor * options_.patience_us : options_.patience_us;
  for (int idle = 0;;) {
    bool moved = false, finished = true;
    for (Started& op : ops) {
      if (!op->finished()) moved |= Play(op);
      finished &= op->finished();
    }
    if (finished) return true;
    if (moved) {
      idle = 0;
      until = {};
      continue;
    }
    if (patient && !waiting.looks && lookers_.has_sources()) {
      waiting.looks = true;
      lookers_.Begin();
    }
    if (++idle < looks) continue;
    const auto now = Clock::now();
    if (until == Clock::time_point{}) {
      until = std::min(longest, now + std::chrono::microseconds(patient ? patience_us : options_.spin_us));
      if (patient && waiting.seat < 0) {
        longest = now + kPollAtMost;
        waiting.seat = PlaceWaiter(*ops[0], now);
        yielded = now;
      }
    } else if (now >= until) {
      return false;
    }
    // Of several, each rank may have filled its peers' rings with messages of those that they have yet to send for.
    if (ops.size() > 1) Spill();
    if (crowded && now - yielded < kKeepCpuFor && waiting.seat >= 0 && ops.size() == 1 && ops[0]->plan().sends_first &&
        !links_.AnyWants(waiting.seat, ops[0]->key())) {
      continue;
    }
    sched_yield();
    yielded = now;
  }
}

int Engine::PlaceWaiter(const Operation& op, Clock::time_point now) {
  const int processor = sched_getcpu(), process = op.plan().process;
  bell_->Sit(processor, op.key());
  // A move costs some 50 us, and where others keep all processors busy it does not last.
  if (now - move_considered_at_.load(std::memory_order_relaxed) < kMoveInterval) return processor;
  std::array<std::pair<int, int>, 64> seats;
  const auto others = std::span(seats).first(std::min(links_.Seats(seats), seats.size()));
  if (std::none_of(others.begin(), others.end(), [&](const auto& other) { return other.second == processor; })) {
    return processor;
  }
  move_considered_at_.store(now, std::memory_order_relaxed);
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return processor;
  const int to = ChooseCpu(process, processor, others, allowed);
  if (to < 0) return processor;
  counters_.moves++;
  MoveToCpu(to, allowed);
  bell_->Sit(to, op.key());
  return to;
}

void Engine::WakeWorkers(int count) {
  if (!idle_->Wake(count) || count > 1) bell_->Wake(count);
}

void Engine::ReportNonFinite(Operation& op, const std::string& text) {
  if (text.empty()) return;
  if (options_.non_finite == EngineOptions::NonFinite::kFail) {
    op.Fail(Status::Error(Code::kFailedPrecondition, text));
    return;
  }
  std::lock_guard lock(mutex_);
  if (!warned_.insert(op.plan().key).second) return;
  warnings_.push_back(text);
  op.non_finite_text = text;
}

std::string Engine::ToMessage(const Status& status) const {
  switch (status.code) {
    case Code::kDeadlineExceeded:
    case Code::kUnavailable:
    case Code::kDataLoss:
      return options_.record_hint.empty() ? status.message : status.message + " " + options_.record_hint;
    default:
      return status.message;
  }
}

std::vector<std::string> Engine::TakeWarnings() {
  std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

void Engine::Finish(const std::shared_ptr<Operation>& op) {
  if (options_.non_finite != EngineOptions::NonFinite::kIgnore && !op->failed())
    ReportNonFinite(*op, NonFiniteResult(*op));
  if (op->handed_over) {
    std::lock_guard lock(mutex_);
    std::erase(active_, op);
    version_.fetch_add(1, std::memory_order_release);
    active_count_.fetch_sub(1, std::memory_order_release);
  }
  Status status = op->failed() ? op->status() : Status{};
  if (saver_ && (op->failed() || !op->non_finite_text.empty())) {
    std::string trouble = saver_->Save(*op, op->failed() ? status.message : op->non_finite_text);
    std::lock_guard lock(mutex_);
    if (!trouble.empty()) warnings_.push_back(std::move(trouble));
  }
  recorder_.End(op->record, op->failed());
  if (op->failed()) {
    counters_.failures++;
    // A process that gives up says so of itself, not of each operation.
    if (!op->plan().alone() && !aborted_.load(std::memory_order_acquire)) {
      BroadcastFailure(op->key(), status, op->plan().process);
    }
    unexpected_.Discard(op->key());
    if (op->owned_input) {
      std::lock_guard lock(mutex_);
      detached_failures_[op->plan().key] = status;
    }
  }
  unfinished_--;
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
