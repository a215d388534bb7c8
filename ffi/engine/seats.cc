#include "engine/seats.h"

#include <algorithm>

namespace jaxring {

int SeatApart(int process, int processor, std::span<const std::pair<int, int>> others, const cpu_set_t& allowed) {
  const bool shared = std::any_of(others.begin(), others.end(), [&](const std::pair<int, int>& other) {
    return other.second == processor && other.first < process;
  });
  if (!shared || static_cast<int>(others.size()) >= CPU_COUNT(&allowed)) return -1;
  for (int step = 1; step < CPU_SETSIZE; ++step) {
    const int candidate = (processor + step) % CPU_SETSIZE;
    if (!CPU_ISSET(candidate, &allowed)) continue;
    if (std::none_of(others.begin(), others.end(), [&](auto& other) { return other.second == candidate; })) {
      return candidate;
    }
  }
  return -1;
}

void MoveTo(int processor, const cpu_set_t& allowed) {
  cpu_set_t there;
  CPU_ZERO(&there);
  CPU_SET(processor, &there);
  if (sched_setaffinity(0, sizeof there, &there) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace jaxring
