// Starts an execution once its participants and plans are here, with an operation for each collective of the call.
#include <algorithm>
#include <cstring>
#include <new>

#include "base/mutex.h"
#include "engine/calls/fused_call.h"
#include "engine/engine.h"
#include "engine/operation/epilogue_fit.h"
#include "engine/site.h"

namespace jaxring {

bool Site::Fits(const Plan& plan, size_t collective, Execution& execution) {
  for (const RankTable& table : plan.group.locals) {
    const Arrival* came = Of(execution, table.site_rank());
    if (came == nullptr) {
      FailAll(execution, Status::Error(Code::kInternal, plan.what + ": the plan names a local rank that is not here"));
      return false;
    }
    if (came->participant.extents) continue;
    const Arrival::Buffers buffers = came->Of(collective);
    if ((plan.half != Half::kRecv && buffers.in_bytes != plan.in_bytes()) ||
        (plan.half != Half::kSend && buffers.out_bytes != plan.out_bytes())) {
      FailAll(execution,
              Status::Error(Code::kInternal, plan.what + ": buffers of " + std::to_string(buffers.in_bytes) + " and " +
                                                 std::to_string(buffers.out_bytes) + " bytes do not fit the plan"));
      return false;
    }
    if (!FurtherFit(plan, came->participant)) {
      FailAll(
          execution,
          Status::Error(Code::kInternal,
                        plan.what + ": parameters, operands or states of its epilogue or codes do not fit the plan"));
      return false;
    }
  }
  return true;
}

bool Site::FurtherFit(const Plan& plan, const Participant& participant) {
  if (plan.codes.has_value() != (participant.codes != nullptr)) return false;
  if (plan.epilogue == nullptr && participant.epilogue == nullptr) [[likely]]
    return true;
  return Fit(plan.epilogue.get(), participant.epilogue.get(), plan.shape.out_blocks * plan.shape.block_elements);
}

bool Site::Buffer(const Plan& plan, Execution& execution, std::shared_ptr<std::vector<char>>* copy,
                  std::vector<Completion>* sent) {
  const size_t bytes = plan.in_bytes() * plan.group.locals.size();
  try {
    *copy = std::make_shared<std::vector<char>>(bytes);
  } catch (const std::bad_alloc&) {
    const Status status =
        Status::Error(Code::kResourceExhausted, plan.what + ": process " + std::to_string(plan.group.process) +
                                                    " has no memory for the " + std::to_string(bytes) +
                                                    " bytes that it sends. " + kMemoryHint);
    FailAll(execution, status);
    engine_->network().BroadcastFailure(OperationKey(plan, execution.sequence), status, plan.group.process);
    return false;
  }
  char* to = (*copy)->data();
  for (const RankTable& table : plan.group.locals) {
    Participant& participant = Of(execution, table.site_rank())->participant;
    if (plan.in_bytes() != 0) std::memcpy(to, participant.in, plan.in_bytes());
    participant.in = to;
    to += plan.in_bytes();
    sent->push_back(std::move(participant.done));
    participant.done = nullptr;
    participant.on_launching_thread = false;
  }
  return true;
}

std::shared_ptr<Operation> Site::Prepare(Group& group, size_t collective, Execution& execution, Clock::time_point now,
                                         std::vector<Completion>* sent) {
  Collective& state = group.collectives[collective];
  const std::shared_ptr<const Plan>& plan = state.plan;
  std::shared_ptr<std::vector<char>> copy;
  if (plan->half == Half::kSend && !Buffer(*plan, execution, &copy, sent)) return nullptr;
  std::shared_ptr<Operation> op = std::move(state.spare);
  std::vector<Participant> fresh(op ? 0 : plan->group.locals.size());
  std::vector<Participant>& participants = op ? op->participants() : fresh;
  for (size_t i = 0; i < plan->group.locals.size(); ++i) {
    Arrival& arrival = *Of(execution, plan->group.locals[i].site_rank());
    Participant& participant = participants[i];
    if (group.collectives.size() == 1) {
      participant = std::move(arrival.participant);
    } else {
      const Arrival::Buffers buffers = arrival.Of(collective);
      participant.in = buffers.in;
      participant.out = buffers.out;
      participant.pages = buffers.pages;
    }
    participant.rank = plan->group.locals[i].rank;
  }
  const auto deadline =
      now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan->timeout_s));
  const uint64_t key = OperationKey(*plan, execution.sequence);
  if (op) {
    op->Reuse(key, deadline);
  } else {
    op = std::make_shared<Operation>(plan, key, std::move(fresh), deadline);
  }
  op->owned_input = std::move(copy);
  op->sequence = execution.sequence;
  op->record = engine_->recorder().Begin(*plan, key, execution.sequence, execution.begun, now);
  for (const Participant& participant : op->participants()) {
    if (participant.extents && !participant.extents->invalid.empty()) {
      op->Fail(Status::Error(Code::kInvalidArgument, plan->what + ": " + plan->group.ranks[participant.rank].name +
                                                         ": " + participant.extents->invalid));
    }
  }
  return op;
}

bool Site::Start(int group_index, Execution& execution, Clock::time_point now, Started* started) {
  Group& group = groups_[group_index];
  const Plan& first = *group.collectives[0].plan;
  if (first.half != Half::kBoth) {
    if (Status failure = engine_->sites().TakeFailure(first.key); !failure.ok()) {
      failure.message = "an earlier buffered send failed: " + failure.message;
      FailAll(execution, failure);
      return false;
    }
  }
  for (size_t i = 0; i < group.collectives.size(); ++i) {
    if (!Fits(*group.collectives[i].plan, i, execution)) return false;
  }
  if (group.collectives.size() != 1) started->several.resize(group.collectives.size());
  const std::span ops = started->ops();
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i] = Prepare(group, i, execution, now, &started->sent);
    if (ops[i] == nullptr) return false;
    ops[i]->home = {this, group_index, i};
  }
  if (!started->several.empty()) Fuse(execution, ops);
  return true;
}

void Site::Launch(Started& started, bool on_this_thread) {
  engine_->Launch(started.ops(), on_this_thread);
  for (Completion& done : started.sent) engine_->completions().Post([done = std::move(done)] { done(Status{}); });
}

void Site::Fuse(Execution& execution, std::span<std::shared_ptr<Operation>> ops) {
  std::vector<Completion> others;
  others.reserve(execution.arrivals.size());
  Completion own;
  for (Arrival& arrival : execution.arrivals) {
    if (arrival.participant.on_launching_thread) {
      own = std::move(arrival.participant.done);
    } else {
      others.push_back(std::move(arrival.participant.done));
    }
  }
  const auto fused =
      std::make_shared<FusedCall>(&engine_->completions(), ops.size(), std::move(others), std::move(own));
  for (std::shared_ptr<Operation>& op : ops) op->fused = fused;
}

void Site::TakeBack(int group, std::span<std::shared_ptr<Operation>> ops) {
  MutexLock lock(mutex_);
  for (std::shared_ptr<Operation>& op : ops) {
    Collective& state = groups_[group].collectives[op->home.collective];
    if (op.use_count() == 1 && op->Reusable() && state.plan.get() == &op->plan()) state.spare = std::move(op);
  }
}

void Site::FailAll(Execution& execution, const Status& status) {
  for (Arrival& arrival : execution.arrivals) {
    if (!arrival.participant.done) continue;
    engine_->completions().Post([done = std::move(arrival.participant.done), status] { done(status); });
    arrival.participant.done = nullptr;
  }
}

}  // namespace jaxring
