#include "tests/simulation/simulation.h"

#include <algorithm>
#include <utility>

namespace jaxring::test {

Simulation::Simulation(VirtualTime* time, int processes, const EngineOptions& options, int channels, Planner planner,
                       Pairs connected)
    : time_(*time),
      channels_(channels),
      planner_(std::move(planner)),
      connected_(std::move(connected)),
      shared_(time->Chance(50)   ? 0
              : time->Chance(50) ? 100
                                 : 50),
      processes_(processes) {
  for (int p = 0; p < processes; ++p) {
    Process& process = processes_[p];
    process.engine = std::make_unique<Engine>(options, [&](NetworkClient* client) {
      auto network = std::make_unique<FakeNetwork>(&time_, p, options.slot_bytes, client);
      process.network = network.get();
      return network;
    });
    process.workers.resize(options.threads);
    for (size_t i = 0; i < process.workers.size(); ++i) time_.After(time_.Delay(), [this, p, i] { Look(p, i); });
  }
  Connect();
}

void Simulation::Connect() {
  for (int from = 0; from < processes(); ++from) {
    Process& process = processes_[from];
    if (shared_ > 0)
      process.blocks =
          std::make_shared<SharedBlockPool>(SharedBlockPool::Create(process.network->links().slot_bytes()));
    for (int to = 0; to < processes(); ++to) {
      const bool connected = connected_.empty() || connected_.count(std::minmax(from, to)) != 0;
      if (from == to || !connected) continue;
      const bool shares = time_.Chance(shared_);
      process.network->Connect(processes_[to].network, channels_, shares ? process.blocks : nullptr);
    }
  }
}

void Simulation::Look(int p, size_t i) {
  Process& process = processes_[p];
  if (process.dead) return;
  const Workers::Next next = process.engine->workers().Look(process.workers[i]);
  auto again = [this, p, i] { Look(p, i); };
  if (next.sleep == nullptr) {
    if (next.moved) time_.Note("worked", p, i);
    return time_.After(static_cast<int64_t>(1 + time_.Random(3)), again);
  }
  // Something may ring between the look and the sleep.
  time_.After(static_cast<int64_t>(time_.Random(3)), [this, p, i, next, again] {
    auto* const doorbell = static_cast<FakeDoorbell*>(next.sleep);
    doorbell->Sleep(next.seen, [this, p, i, again] {
      processes_[p].workers[i].last_progress = Clock::now();
      again();
    });
  });
}

void Simulation::Arrive(int process, const VirtualTime::Event& arrive) {
  if (dead(process)) return;
  arrive();
  time_.After(time_.Delay() * 5, [this, process] { Plan(process); }, true);
}

void Simulation::Plan(int process) {
  PlanRequest request;
  while (!dead(process) && engine(process).python().NextRequest(0, &request)) {
    time_.Note("planned", process, request.collective);
    planner_(process, request);
  }
}

bool Simulation::Run(const std::function<bool()>& done, int64_t until) {
  while (!done()) {
    if (!time_.Step(until)) return done();
    for (Process& process : processes_) {
      while (!process.dead && process.engine->completions().RunOne()) {
      }
    }
  }
  return true;
}

void Simulation::Kill(int process) {
  Process& killed = processes_[process];
  if (std::exchange(killed.dead, true)) return;
  killed.network->Stop();
  time_.Note("killed", process, 0);
  for (Process& other : processes_) {
    if (&other == &killed) continue;
    Cut(process, static_cast<int>(&other - processes_.data()));
  }
}

void Simulation::Cut(int a, int b) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    for (const FakeWay& way : processes_[from].network->ways()) {
      if (way.to == to) way.End(&time_);
    }
  }
}

bool Simulation::Renew(uint64_t epoch) {
  for (Process& process : processes_) {
    if (process.engine->network().epoch() != epoch && !process.engine->Renew(epoch, 0)) return false;
  }
  Connect();
  for (Process& process : processes_) process.engine->halting().Resume();
  return true;
}

uint32_t Simulation::HeldSharedBlocks() const {
  uint32_t held = 0;
  for (const Process& process : processes_) held += process.blocks ? process.blocks->held() : 0;
  return held;
}

size_t Simulation::Left() const {
  size_t left = 0;
  for (const Process& process : processes_) {
    for (const FakeWay& way : process.network->ways()) left += static_cast<size_t>(way.Left());
    left += process.network->unexpected().bytes();
  }
  return left;
}

}  // namespace jaxring::test
