#include "engine/threads/cpu_placement.h"

#include <algorithm>
#include <array>

namespace jaxring {
namespace {

// The least time between two attempts of launching threads to move off a shared CPU. A move costs some 50 us, and does
// not last while other work keeps all CPUs busy.
constexpr auto kMoveInterval = std::chrono::milliseconds(5);

}  // namespace

int ChooseCpu(int process, int processor, std::span<const std::pair<int, int>> others, const cpu_set_t& allowed) {
  std::array<int, CPU_SETSIZE> waiting{};
  int elsewhere = 0, here = 1;
  for (const auto& [other, cpu] : others) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) {
      ++elsewhere;
    } else if (cpu != processor) {
      ++waiting[cpu];
    } else if (other > process) {
      return -1;
    } else {
      ++here;
    }
  }
  // On a crowded host a process that does not wait now soon will, on any CPU.
  const int unseen = others.size() >= static_cast<size_t>(CPU_COUNT(&allowed)) ? elsewhere : 0;
  int best = -1, fewest = here - 1 - unseen;
  for (int step = 1; step < CPU_SETSIZE; ++step) {
    const int candidate = (processor + step) % CPU_SETSIZE;
    if (!CPU_ISSET(candidate, &allowed) || waiting[candidate] >= fewest) continue;
    best = candidate;
    fewest = waiting[candidate];
  }
  return best;
}

size_t AllowedCpus() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

void MoveToCpu(int processor, const cpu_set_t& allowed) {
  cpu_set_t there;
  CPU_ZERO(&there);
  CPU_SET(processor, &there);
  if (sched_setaffinity(0, sizeof there, &there) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

WaiterPlacement::Chosen WaiterPlacement::Begin(int process, uint64_t operation, Doorbell& doorbell, const Links& links,
                                               Time now) {
  const int processor = sched_getcpu();
  const Chosen stays{processor, false};
  doorbell.SetWaiter(processor, operation);
  if (now - considered_at_.load(std::memory_order_relaxed) < kMoveInterval) return stays;
  std::array<std::pair<int, int>, 64> waiters;
  const auto others = std::span(waiters).first(std::min(links.WaiterCpus(waiters), waiters.size()));
  if (std::none_of(others.begin(), others.end(), [&](const auto& other) { return other.second == processor; })) {
    return stays;
  }
  considered_at_.store(now, std::memory_order_relaxed);
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return stays;
  const int to = ChooseCpu(process, processor, others, allowed);
  if (to < 0) return stays;
  MoveToCpu(to, allowed);
  doorbell.SetWaiter(to, operation);
  return {to, true};
}

}  // namespace jaxring
