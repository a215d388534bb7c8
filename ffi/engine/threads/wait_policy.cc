#include "engine/threads/wait_policy.h"

#include "engine/threads/cpu_placement.h"

namespace jaxring {
namespace {

using std::chrono::microseconds;

// A yield takes 0.3 us and more. Messages of a running peer arrive within these polls, some 5 us, and are seen a little
// sooner than between two yields.
constexpr int kPolls = 128;

WaitPolicy Usual(microseconds spin, microseconds patience) { return {kPolls, patience, spin, false, microseconds(0)}; }

// A peer may need this thread's CPU: 4 processes on 2 CPUs take half the time with 2 polls. Workers would need three
// wake-ups, each behind peers that yield to each other (0.4 ms were measured). Those peers would then hand over, too,
// and one delay would last for a thousand operations: so a launching thread has ten times the patience.
WaitPolicy Crowded(microseconds spin, microseconds patience) {
  return {2, 10 * patience, spin, true, microseconds(50)};
}

}  // namespace

std::string WaitPolicy::Describe() const {
  std::string text = "poll for " + std::to_string(patience.count()) + " us";
  text += any_size ? "" : " for small operations and " + std::to_string(spin.count()) + " us for others";
  text += ", with a yield after " + std::to_string(polls) + " polls";
  return text + (keep_cpu.count() > 0 ? " unless all on the CPU wait for the same" : "") + ", then sleep";
}

WaitPolicies::WaitPolicies(microseconds spin, microseconds patience)
    : processors_(AllowedCpus()), usual_(Usual(spin, patience)), crowded_(Crowded(spin, patience)), current_(&usual_) {}

}  // namespace jaxring
