#include "engine/site.h"

#include <algorithm>

#include "engine/engine.h"
#include "engine/signals/signals.h"

namespace jaxring {
namespace {

std::atomic<uint64_t> sites_made{0};

}  // namespace

const std::string& PlanRequest::spec() const { return site->spec().specs[collective]; }

std::string PlanRequest::shown() const {
  const std::vector<std::string>& shown = site->spec().shown;
  return collective < shown.size() ? shown[collective] : "";
}

void PlanRequest::Resolve(std::shared_ptr<const Plan> plan) const { site->Resolve(group, collective, std::move(plan)); }

void PlanRequest::Identify(uint64_t key, Half half, int process) const {
  site->Identify(group, collective, key, half, process, epoch);
}

void PlanRequest::Reject(const Status& status) const { site->Reject(group, collective, status, epoch); }

std::shared_ptr<Site> Site::Make(Engine* engine, SiteSpec spec) {
  auto site = std::make_shared<Site>(Token{}, engine, std::move(spec));
  // In the list first: an epoch that begins before that is read here, and of a later one Renew tells the site.
  engine->sites().Add(site);
  MutexLock lock(site->mutex_);
  site->epoch_ = engine->network().epoch();
  return site;
}

Site::Site(Token, Engine* engine, SiteSpec spec) : engine_(engine), id_(sites_made++), spec_(std::move(spec)) {
  // Watches signal handlers that were installed meanwhile. The engine also does so at each tick while a call is in
  // flight, but a signal may come before that, and the first call of a program may wait long for its plan.
  WatchSignalsAgain();
  for (size_t i = 0; i < spec_.groups.size(); ++i) {
    place_[spec_.groups[i]] = {static_cast<int>(i) / spec_.group_size, static_cast<int>(i) % spec_.group_size};
  }
  groups_.resize(spec_.groups.size() / spec_.group_size);
  for (Group& group : groups_) group.collectives.resize(spec_.specs.size());
  engine_->counters().sites++;
}

Site::~Site() {
  engine_->sites().Remove(*this);
  engine_->counters().sites--;
}

std::vector<int32_t> Site::GroupPartitions(int group) const {
  auto begin = spec_.groups.begin() + group * spec_.group_size;
  return {begin, begin + spec_.group_size};
}

std::map<int, int> Site::Arrived(int group) {
  MutexLock lock(mutex_);
  return groups_[group].devices;
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
  if (arrival.participant.blocks) {
    const std::span results(arrival.participant.blocks.get() + spec_.group_size, spec_.group_size);
    arrival.participant.pages = PrepareBlocks(results, arrival.out_bytes / spec_.group_size);
  } else if (arrival.participant.out != arrival.participant.in) {
    arrival.participant.pages = PreparePages(arrival.participant.out, arrival.out_bytes);
  }
  for (size_t i = 1; i < spec_.specs.size(); ++i) {
    Arrival::Buffers& buffers = arrival.further[i - 1];
    if (buffers.out != buffers.in) buffers.pages = PreparePages(buffers.out, buffers.out_bytes);
  }
  RelockableMutexLock lock(mutex_);
  if (std::optional<std::string> why = engine_->halting().Reason()) {
    engine_->completions().Post([done = std::move(arrival.participant.done), text = "jaxring: " + *why] {
      done(Status::Error(Code::kAborted, text));
    });
    return;
  }
  Group& group = groups_[group_index];
  if (group.ready && group.locals() == 1 && group.waiting.empty()) {
    const auto now = Clock::now();
    Execution execution{arrival.run_id, NextSequence(group), now, {}, {}};
    arrival.participant.on_launching_thread = true;
    execution.arrivals.push_back(std::move(arrival));
    Started started;
    if (!Start(group_index, execution, now, &started)) return;
    lock.Unlock();
    return Launch(started, true);
  }
  if (!group.ready) group.devices[rank] = arrival.device;
  auto it = group.waiting.begin();
  while (it != group.waiting.end() && (it->run_id != arrival.run_id || Of(*it, rank) != nullptr)) ++it;
  if (it == group.waiting.end()) {
    group.waiting.push_back({arrival.run_id, NextSequence(group), Clock::now(), {}, {}});
    it = std::prev(group.waiting.end());
    if (group.ready) it->arrivals.reserve(group.locals());
  }
  it->arrivals.push_back(std::move(arrival));
  if (!it->failure.ok()) {
    FailAll(*it, it->failure);
    if (group.ready && Complete(group, *it)) group.waiting.erase(it);
    return;
  }
  if (group.ready && Complete(group, *it)) {
    Execution execution = std::move(*it);
    group.waiting.erase(it);
    execution.arrivals.back().participant.on_launching_thread = true;
    Started started;
    if (!Start(group_index, execution, Clock::now(), &started)) return;
    lock.Unlock();
    return Launch(started, true);
  }
  if (!group.ready) Ask(group_index);
  if (!watched_) {
    watched_ = true;
    engine_->sites().Watch(weak_from_this());
  }
}

void Site::Ask(int group) {
  for (size_t i = 0; i < spec_.specs.size(); ++i) {
    Collective& state = groups_[group].collectives[i];
    if (state.plan || state.asked) continue;
    state.asked = true;
    engine_->python().Ask({0, shared_from_this(), group, i, spec_.ordinals[i], epoch_});
  }
}

Arrival* Site::Of(Execution& execution, int rank) {
  auto it = std::find_if(execution.arrivals.begin(), execution.arrivals.end(),
                         [rank](const Arrival& arrival) { return arrival.participant.rank == rank; });
  return it == execution.arrivals.end() ? nullptr : &*it;
}

bool Site::Complete(const Group& group, const Execution& execution) const {
  return execution.arrivals.size() == group.locals();
}

uint64_t Site::NextSequence(Group& group) {
  // Each call holds its own site's lock. The caller determines the order between sites.
  return group.counter ? group.counter->fetch_add(1, std::memory_order_relaxed) : group.begun++;
}

void Site::Resolve(int group_index, size_t collective, std::shared_ptr<const Plan> plan) {
  engine_->workers().Start();
  RelockableMutexLock lock(mutex_);
  Group& group = groups_[group_index];
  Collective& state = group.collectives[collective];
  // Ignores a plan that was requested before the job was rebuilt, and a second plan.
  if (plan->epoch != epoch_ || state.plan) return;
  Identified(group, state, {plan->key, plan->half, plan->group.process});
  state.plan = std::move(plan);
  state.asked = false;
  group.ready =
      std::all_of(group.collectives.begin(), group.collectives.end(), [](const Collective& each) { return each.plan; });
  if (!group.ready) return;
  while (true) {
    auto it = group.waiting.begin();
    while (it != group.waiting.end() && !Complete(group, *it)) ++it;
    if (it == group.waiting.end()) return;
    Execution execution = std::move(*it);
    group.waiting.erase(it);
    if (!execution.failure.ok()) continue;
    Started started;
    if (!Start(group_index, execution, Clock::now(), &started)) continue;
    lock.Unlock();
    Launch(started, false);
    lock.Lock();
  }
}

void Site::Renew(uint64_t epoch, const Status& status) {
  MutexLock lock(mutex_);
  epoch_ = epoch;
  for (Group& group : groups_) {
    for (Execution& execution : group.waiting) FailAll(execution, status);
    group.waiting.clear();
    group.collectives = std::vector<Collective>(spec_.specs.size());
    group.ready = false;
    group.counter = nullptr;
    group.begun = 0;
  }
}

void Site::Identify(int group, size_t collective, uint64_t key, Half half, int process, uint64_t epoch) {
  MutexLock lock(mutex_);
  if (epoch != epoch_) return;
  Identified(groups_[group], groups_[group].collectives[collective], {key, half, process});
}

void Site::Identified(Group& group, Collective& state, const Collective::Identity& identity) {
  state.identity = identity;
  if (!group.counter && &state == &group.collectives[0]) {
    group.counter = engine_->sites().CounterOf(identity.key, identity.half == Half::kRecv);
    // Includes executions that failed and are gone, because the other processes have counted them.
    const uint64_t before = group.counter->fetch_add(group.begun, std::memory_order_relaxed);
    for (Execution& execution : group.waiting) execution.sequence += before;
  }
  // Executions that failed before because this plan or another collective's was missing.
  for (Execution& execution : group.waiting) {
    if (!execution.failure.ok()) TellFailure(group, execution);
  }
}

void Site::Reject(int group_index, size_t collective, const Status& status, uint64_t epoch) {
  MutexLock lock(mutex_);
  if (epoch != epoch_) return;
  if (status.code == Code::kUnavailable) engine_->network().failures().NoteTrouble();  // a peer cannot be reached
  Group& group = groups_[group_index];
  group.collectives[collective].asked = false;
  for (Execution& execution : group.waiting) {
    if (!execution.failure.ok()) continue;
    FailAll(execution, status);
    // Keeps the failed execution for the ranks that arrive later. They would begin another execution otherwise, which
    // the other processes do not count.
    execution.failure = status;
    TellFailure(group, execution);
  }
}

}  // namespace jaxring
