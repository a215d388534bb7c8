#include "engine/site.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/engine.h"

namespace jaxring {
namespace {

std::mutex ordinals_mutex;
auto* ordinals = new std::map<std::string, uint64_t>;

}  // namespace

uint64_t NextOrdinal(const std::string& spec) {
  std::lock_guard lock(ordinals_mutex);
  return (*ordinals)[spec]++;
}

void RenumberSites(const std::vector<std::shared_ptr<Site>>& sites) {
  std::lock_guard lock(ordinals_mutex);
  ordinals->clear();
  for (const auto& site : sites) site->Number((*ordinals)[site->spec().spec]++);
}

Site::Site(Engine* engine, SiteSpec spec) : engine_(engine), spec_(std::move(spec)) {
  generation_ = engine_->Enrol(this);
  for (size_t i = 0; i < spec_.groups.size(); ++i) {
    place_[spec_.groups[i]] = {static_cast<int>(i) / spec_.group_size, static_cast<int>(i) % spec_.group_size};
  }
  groups_.resize(spec_.groups.size() / spec_.group_size);
  engine_->counters().sites++;
}

Site::~Site() {
  engine_->Strike(this);
  engine_->counters().sites--;
}

std::vector<int32_t> Site::GroupPartitions(int group) const {
  auto begin = spec_.groups.begin() + group * spec_.group_size;
  return {begin, begin + spec_.group_size};
}

std::vector<std::pair<int, int>> Site::Arrived(int group) {
  std::lock_guard lock(mutex_);
  return {groups_[group].devices.begin(), groups_[group].devices.end()};
}

void Site::Arrive(Arrival arrival) {
  auto place = place_.find(arrival.partition);
  if (place == place_.end()) {
    engine_->completions().Post([done = std::move(arrival.participant.done), partition = arrival.partition] {
      done(Status::Error(Code::kInternal, "jaxring: partition " + std::to_string(partition) + " is in no group"));
    });
    return;
  }
  auto [group_index, rank] = place->second;
  arrival.participant.rank = rank;
  if (arrival.participant.out != arrival.participant.in) {
    arrival.participant.pages = PreparePages(arrival.participant.out, arrival.out_bytes);
  }
  std::unique_lock lock(mutex_);
  if (std::optional<std::string> why = engine_->Halted()) {
    engine_->completions().Post([done = std::move(arrival.participant.done), text = "jaxring: " + *why] {
      done(Status::Error(Code::kAborted, text));
    });
    return;
  }
  Group& group = groups_[group_index];
  const bool ready = group.state == PlanState::kReady;
  if (ready && group.plan->locals.size() == 1 && group.waiting.empty()) {
    const auto now = Clock::now();
    Instance instance{arrival.run_id, group.next_sequence++, false, now, {}, {}};
    CountMessage(group, instance);
    arrival.participant.on_launching_thread = true;
    instance.arrivals.push_back(std::move(arrival));
    Start(group_index, std::move(instance), true, now, lock);
    return;
  }
  if (!ready) group.devices[rank] = arrival.device;
  auto it = group.waiting.begin();
  while (it != group.waiting.end() && (it->run_id != arrival.run_id || Of(*it, rank) != nullptr)) ++it;
  if (it == group.waiting.end()) {
    group.waiting.push_back({arrival.run_id, group.next_sequence++, false, Clock::now(), {}, {}});
    it = std::prev(group.waiting.end());
    if (group.plan) it->arrivals.reserve(group.plan->locals.size());
  }
  if (ready) CountMessage(group, *it);
  it->arrivals.push_back(std::move(arrival));
  if (!it->failure.ok()) {
    FailAll(*it, it->failure);
    if (group.plan && Complete(group, *it)) group.waiting.erase(it);
    return;
  }
  if (ready && Complete(group, *it)) {
    Instance instance = std::move(*it);
    group.waiting.erase(it);
    instance.arrivals.back().participant.on_launching_thread = true;
    Start(group_index, std::move(instance), true, Clock::now(), lock);
    return;
  }
  if (group.state == PlanState::kNone) {
    group.state = PlanState::kAsked;
    engine_->Ask({0, shared_from_this(), group_index, spec_.ordinal, generation_});
  }
  if (!watched_) {
    watched_ = true;
    engine_->Watch(weak_from_this());
  }
}

Arrival* Site::Of(Instance& instance, int rank) {
  auto it = std::find_if(instance.arrivals.begin(), instance.arrivals.end(),
                         [rank](const Arrival& arrival) { return arrival.participant.rank == rank; });
  return it == instance.arrivals.end() ? nullptr : &*it;
}

bool Site::Complete(const Group& group, const Instance& instance) const {
  return instance.arrivals.size() == group.plan->locals.size();
}

void Site::CountMessage(const Group& group, Instance& instance) {
  if (instance.numbered || group.plan->half == Half::kBoth) return;
  instance.sequence = engine_->NextSequence(group.plan->key, group.plan->half == Half::kRecv);
  instance.numbered = true;
}

void Site::TakeBack(int group, std::shared_ptr<Operation> op) {
  std::lock_guard lock(mutex_);
  if (groups_[group].plan.get() == &op->plan()) groups_[group].spare = std::move(op);
}

void Site::Start(int group_index, Instance instance, bool help, Clock::time_point now,
                 std::unique_lock<std::mutex>& lock) {
  Group& group = groups_[group_index];
  std::shared_ptr<const Plan> plan = group.plan;
  std::shared_ptr<Operation> op = std::move(group.spare);
  lock.unlock();
  if (plan->half != Half::kBoth) {
    if (Status failure = engine_->TakeDetachedFailure(plan->key); !failure.ok()) {
      failure.message = "an earlier buffered send failed: " + failure.message;
      FailAll(instance, failure);
      return;
    }
  }
  for (const RankTable& table : plan->locals) {
    const Arrival* came = Of(instance, table.site_rank());
    if (came == nullptr) {
      FailAll(instance, Status::Error(Code::kInternal, plan->what + ": the plan names a local rank that is not here"));
      return;
    }
    const Arrival& arrival = *came;
    if (!arrival.participant.extents && ((plan->half != Half::kRecv && arrival.in_bytes != plan->in_bytes()) ||
                                         (plan->half != Half::kSend && arrival.out_bytes != plan->out_bytes()))) {
      FailAll(instance,
              Status::Error(Code::kInternal, plan->what + ": buffers of " + std::to_string(arrival.in_bytes) + " and " +
                                                 std::to_string(arrival.out_bytes) + " bytes do not fit the plan"));
      return;
    }
  }
  // A buffered send ends for its caller as soon as the data is copied: the peer's receive may depend on that end.
  std::shared_ptr<std::vector<char>> copy;
  if (plan->half == Half::kSend) {
    const size_t bytes = plan->in_bytes() * plan->locals.size();
    try {
      copy = std::make_shared<std::vector<char>>(bytes);
    } catch (const std::bad_alloc&) {
      const Status status =
          Status::Error(Code::kResourceExhausted, plan->what + ": process " + std::to_string(plan->process) +
                                                      " has no memory for the " + std::to_string(bytes) +
                                                      " bytes that it sends. " + kMemoryHint);
      FailAll(instance, status);
      engine_->Spread(OperationKey(*plan, instance.sequence), status, plan->process);
      return;
    }
  }
  std::vector<Participant> fresh(op ? 0 : plan->locals.size());
  std::vector<Participant>& participants = op ? op->participants() : fresh;
  for (size_t i = 0; i < plan->locals.size(); ++i) {
    participants[i] = std::move(Of(instance, plan->locals[i].site_rank())->participant);
    participants[i].rank = plan->locals[i].rank;
  }
  const auto deadline =
      now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan->timeout_s));
  const uint64_t key = OperationKey(*plan, instance.sequence);
  std::vector<Completion> sent;
  if (copy) {
    for (size_t i = 0; i < participants.size(); ++i) {
      char* to = copy->data() + i * plan->in_bytes();
      if (plan->in_bytes() != 0) std::memcpy(to, participants[i].in, plan->in_bytes());
      participants[i].in = to;
      sent.push_back(std::move(participants[i].done));
      participants[i].done = nullptr;
      participants[i].on_launching_thread = false;
    }
  }
  if (op) {
    op->Again(key, deadline);
  } else {
    op = std::make_shared<Operation>(plan, key, std::move(fresh), deadline);
  }
  op->home = {this, group_index};
  op->owned_input = copy;
  op->sequence = instance.sequence;
  op->record = engine_->recorder().Begin(*plan, key, instance.sequence, instance.begun, now);
  for (const Participant& participant : op->participants()) {
    if (participant.extents && !participant.extents->invalid.empty()) {
      op->Fail(Status::Error(Code::kInvalidArgument, plan->what + ": " + plan->ranks[participant.rank].name + ": " +
                                                         participant.extents->invalid));
    }
  }
  engine_->Launch(std::move(op), help);
  for (Completion& done : sent) engine_->completions().Post([done = std::move(done)] { done(Status{}); });
}

void Site::FailAll(Instance& instance, const Status& status) {
  for (Arrival& arrival : instance.arrivals) {
    if (!arrival.participant.done) continue;
    engine_->completions().Post([done = std::move(arrival.participant.done), status] { done(status); });
    arrival.participant.done = nullptr;
  }
}

void Site::Resolve(int group_index, std::shared_ptr<const Plan> plan) {
  std::unique_lock lock(mutex_);
  Group& group = groups_[group_index];
  // One that was asked for before the job was rebuilt is of no use, and a second one of no need.
  if (plan->generation != generation_ || group.state == PlanState::kReady) return;
  group.plan = std::move(plan);
  group.state = PlanState::kReady;
  for (Instance& instance : group.waiting) {
    if (instance.failure.ok()) CountMessage(group, instance);
  }
  while (true) {
    auto it = group.waiting.begin();
    while (it != group.waiting.end() && !Complete(group, *it)) ++it;
    if (it == group.waiting.end()) return;
    Instance instance = std::move(*it);
    group.waiting.erase(it);
    if (!instance.failure.ok()) continue;
    Start(group_index, std::move(instance), false, Clock::now(), lock);
    lock.lock();
  }
}

void Site::Renew(uint64_t generation, const Status& status) {
  std::lock_guard lock(mutex_);
  generation_ = generation;
  for (Group& group : groups_) {
    for (Instance& instance : group.waiting) FailAll(instance, status);
    group.waiting.clear();
    group.plan = nullptr;
    group.spare = nullptr;
    group.state = PlanState::kNone;
    group.identity.reset();
    group.next_sequence = 0;
  }
}

void Site::Number(uint64_t ordinal) {
  std::lock_guard lock(mutex_);
  spec_.ordinal = ordinal;
}

void Site::Identify(int group, uint64_t key, Half half, int process) {
  std::lock_guard lock(mutex_);
  groups_[group].identity = Group::Identity{key, half, process};
}

void Site::Reject(int group_index, Status status, uint64_t generation) {
  std::lock_guard lock(mutex_);
  if (generation != generation_) return;
  if (status.code == Code::kUnavailable) engine_->NoteTrouble();  // a peer cannot be reached
  Group& group = groups_[group_index];
  group.state = PlanState::kNone;
  for (Instance& instance : group.waiting) {
    if (!instance.failure.ok()) continue;
    FailAll(instance, status);
    // Its late ranks are to find it, lest they begin another that the other processes do not count.
    instance.failure = status;
    if (!group.identity) continue;
    const auto& [key, half, process] = *group.identity;
    if (half != Half::kBoth) instance.sequence = engine_->NextSequence(key, half == Half::kRecv);
    instance.numbered = true;
    engine_->Spread(OperationKey(key, instance.sequence), status, process);
  }
}

}  // namespace jaxring
