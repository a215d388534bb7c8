#include "tests/simulation/programs/program.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

namespace jaxring::test {
namespace {

// The schedules of up to four processes, by placement.
const std::vector<std::vector<const Schedule*>>& Placements() {
  static const auto placements = [] {
    std::map<std::vector<int32_t>, std::vector<const Schedule*>> found;
    for (const auto& list : ScheduleLists()) {
      for (const Schedule& schedule : list) {
        if (schedule.half != Half::kBoth || schedule.ranks() < 2 || schedule.ranks() > 5) continue;
        if (schedule.processes() <= 4) found[schedule.placement].push_back(&schedule);
      }
    }
    std::vector<std::vector<const Schedule*>> all;
    for (auto& [placement, schedules] : found) all.push_back(std::move(schedules));
    return all;
  }();
  return placements;
}

Settings Choose(VirtualTime& time, const Schedule& schedule) {
  static constexpr std::array kDtypes = {DType::kInt32, DType::kF32, DType::kBF16, DType::kInt8};
  Settings settings;
  settings.dtype = kDtypes[time.Random(kDtypes.size())];
  settings.op = time.Chance(70) ? ReduceOp::kSum : ReduceOp::kMax;
  settings.tile = 48 / static_cast<uint64_t>(schedule.group);
  settings.protocol = !schedule.messages() ? Protocol::kMemory : time.Chance(50) ? Protocol::kLL : Protocol::kSimple;
  const uint64_t longest = time.Chance(60) ? 40 : time.Chance(75) ? 200 : 700;
  settings.block = 1 + time.Random(longest);
  return settings;
}

}  // namespace

Program::Program(VirtualTime* time) : time_(*time) {
  const auto& schedules = Placements()[time_.Random(Placements().size())];
  for (uint64_t i = 0, n = 1 + time_.Random(3); i < n; ++i) {
    Made made;
    for (uint64_t fused = time_.Chance(75) ? 1 : 2 + time_.Random(2); fused > 0; --fused) {
      const Schedule& schedule = *schedules[time_.Random(schedules.size())];
      made.collectives.push_back({&schedule, Choose(time_, schedule)});
    }
    calls_.push_back(std::move(made));
  }
  in_order_ = time_.Chance(60);
}

Simulation::Pairs Program::Connected() const {
  Simulation::Pairs pairs;
  for (const Made& made : calls_) {
    for (const Collective& collective : made.collectives) {
      for (const RankTable& table : collective.schedule->tables) {
        for (int32_t peer : table.peers) {
          const int a = process(table.rank), b = process(Peer::rank(peer));
          if (a != b) pairs.insert(std::minmax(a, b));
        }
      }
    }
  }
  std::set<int> reached{0};
  for (int round = 0; round < processes(); ++round) {
    for (const auto& [a, b] : pairs) {
      if (reached.count(a) + reached.count(b) == 1) reached.insert({a, b});
    }
  }
  return reached.size() == static_cast<size_t>(processes()) ? pairs : Simulation::Pairs();
}

void Program::Begin(Simulation* simulation) {
  simulation_ = simulation;
  for (size_t call = 0; call < calls_.size(); ++call) {
    Made& made = calls_[call];
    SiteSpec spec{{}, {}, ranks(), limit_s_, std::vector<uint64_t>(made.collectives.size())};
    for (Collective& collective : made.collectives) {
      collective.settings.key = 100 * (call + 1) + spec.specs.size();
      collective.settings.timeout_s = limit_s_;
      spec.specs.push_back(std::to_string(call));
    }
    for (int rank = 0; rank < ranks(); ++rank) spec.groups.push_back(rank);
    for (int p = 0; p < processes(); ++p) made.sites.push_back(Site::Make(&simulation->engine(p), spec));
  }
}

Settings Program::SettingsOf(size_t call, size_t collective, int process) const {
  Settings settings = calls_[call].collectives[collective].settings;
  if (process == disagrees_ && call == 0) ++settings.block;
  return settings;
}

void Program::Plan(int process, const PlanRequest& request) {
  const size_t call = std::stoul(request.spec());
  const Settings settings = SettingsOf(call, request.collective, process);
  if (process == refuses_ && call == 0 && refusals_ > 0) {
    --refusals_;
    request.Identify(settings.key, Half::kBoth, process);
    return request.Reject(reason_);
  }
  auto plan = MakePlan(*calls_[call].collectives[request.collective].schedule, settings, process, kChannels);
  plan->check = static_cast<uint32_t>(settings.block);
  plan->epoch = request.epoch;
  CheckPlan(*plan, kSlotBytes);
  request.Resolve(std::move(plan));
}

void Program::Launch() {
  const size_t begin = executions_.size();
  const int64_t first_run = static_cast<int64_t>(begin);
  std::vector<size_t> order;
  for (size_t call = 0; call < calls_.size(); ++call) {
    for (uint64_t i = 0, n = 1 + time_.Random(4); i < n; ++i) order.push_back(call);
  }
  auto shuffle = [this](std::vector<size_t>& list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[time_.Random(i)]);
  };
  shuffle(order);
  std::vector<int64_t> runs(calls_.size(), first_run);
  for (size_t call : order) {
    const std::vector<Collective>& collectives = calls_[call].collectives;
    Execution execution{call, runs[call]++, std::vector<Execution::Data>(collectives.size())};
    for (size_t i = 0; i < collectives.size(); ++i) {
      for (int rank = 0; rank < ranks(); ++rank) {
        const Settings settings = SettingsOf(call, i, process(rank));
        const Schedule& schedule = *collectives[i].schedule;
        execution.data[i].inputs.push_back(Input(settings, schedule.in_blocks, rank, executions_.size() + i));
        execution.data[i].outputs.emplace_back(settings.block * settings.result_bytes() * schedule.out_blocks);
      }
    }
    execution.ends.resize(ranks());
    executions_.push_back(std::move(execution));
  }
  orders_.assign(ranks(), {});
  launched_ = begin;
  for (int rank = 0; rank < ranks(); ++rank) {
    // Executions of one call keep their order.
    std::vector<size_t> calls = order;
    if (!in_order_) shuffle(calls);
    std::map<size_t, size_t> next;
    for (size_t call : calls) {
      size_t& at = next.try_emplace(call, begin).first->second;
      while (executions_[at].call != call) ++at;
      orders_[rank].push_back(at++);
    }
    const int64_t late = spread_ ? static_cast<int64_t>(time_.Random(500'000)) : 0;
    time_.After(late + time_.Delay() * (time_.Chance(10) ? 50 : 1), [this, rank] { Next(rank, 0); }, true);
  }
}

void Program::Next(int rank, size_t place) {
  if (place >= orders_[rank].size()) return;
  const size_t execution = orders_[rank][place];
  Arrive(rank, execution);
  // In order, the end of this one begins the next.
  // Now and then a rank rests, while others wait for its next one.
  if (!in_order_ && place + 1 < orders_[rank].size())
    time_.After(
        time_.Delay() * (limit_s_ > 1 && time_.Chance(5) ? 500 : 1), [this, rank, place] { Next(rank, place + 1); },
        true);
}

void Program::Arrive(int rank, size_t number) {
  Execution& execution = executions_[number];
  if (Absent(rank, number) || simulation_->dead(process(rank))) return;
  const Made& made = calls_[execution.call];
  execution.ends[rank].arrived = true;
  execution.ends[rank].arrived_at = time_.now();
  time_.Note("arrives", process(rank), number * 16 + rank);
  simulation_->Arrive(process(rank), [&] {
    const auto buffers = [&](size_t i) -> Arrival::Buffers {
      const Buffer& in = execution.data[i].inputs[rank];
      Buffer& out = execution.data[i].outputs[rank];
      return {in.data(), out.data(), in.size(), out.size()};
    };
    const Arrival::Buffers first = buffers(0);
    Arrival arrival{rank, rank, execution.run, {}, first.in_bytes, first.out_bytes};
    arrival.participant.in = first.in;
    arrival.participant.out = first.out;
    const size_t fused = execution.data.size();
    if (fused > 1) arrival.further = std::make_unique<Arrival::Buffers[]>(fused - 1);
    for (size_t i = 1; i < fused; ++i) arrival.further[i - 1] = buffers(i);
    arrival.participant.done = [this, rank, number](const Status& status) {
      Execution& ended = executions_[number];
      ++ended.ends[rank].called;
      ended.ends[rank].ended_at = time_.now();
      ended.ends[rank].status = status;
      uint64_t detail = number * 16 + rank;
      for (char c : status.message) detail = detail * 31 + static_cast<unsigned char>(c);
      time_.Note(status.ok() ? "succeeds" : "fails", process(rank), detail);
      const auto at = std::find(orders_[rank].begin(), orders_[rank].end(), number);
      if (!in_order_ || at == orders_[rank].end() || at + 1 == orders_[rank].end()) return;
      const size_t next = static_cast<size_t>(at - orders_[rank].begin()) + 1;
      time_.After(time_.Delay(), [this, rank, next] { Next(rank, next); }, true);
    };
    made.sites[process(rank)]->Arrive(std::move(arrival));
  });
}

bool Program::Ended(const Simulation& simulation) const {
  for (size_t i = launched_; i < executions_.size(); ++i) {
    for (int rank = 0; rank < ranks(); ++rank) {
      if (simulation.dead(process(rank)) || executions_[i].ends[rank].called > 0) continue;
      if (!Absent(rank, i)) return false;
    }
  }
  return true;
}

std::string Program::Describe(const Execution& execution) const {
  std::string text;
  for (const Collective& collective : calls_[execution.call].collectives) {
    text.append(text.empty() ? "" : " and ").append(collective.schedule->name);
    text.append(", block ").append(std::to_string(collective.settings.block)).append(", protocol ");
    text.append(std::to_string(static_cast<int>(collective.settings.protocol)));
  }
  return text.append(", run ").append(std::to_string(execution.run));
}

void Program::CheckOutputs() const {
  for (const Execution& execution : executions_) {
    if (disagrees_ >= 0 && execution.call == 0) continue;
    for (size_t i = 0; i < execution.data.size(); ++i) {
      const Collective& collective = calls_[execution.call].collectives[i];
      const Reference reference(Describe(execution), *collective.schedule, collective.settings,
                                execution.data[i].inputs);
      for (int rank = 0; rank < ranks(); ++rank) {
        const Execution::End& end = execution.ends[rank];
        if (end.called > 0 && end.status.ok()) reference.Check(rank, execution.data[i].outputs[rank]);
      }
    }
  }
}

}  // namespace jaxring::test
