#include "engine/threads/wait_policy.h"

#include "engine/threads/cpu_placement.h"

namespace jaxring {
namespace {

using std::chrono::microseconds;

// A yield takes 0.3 us and more. Messages of a running peer arrive within these polls, some 5 us, and are seen a little
// sooner than between two yields.
constexpr int kPolls = 128;

WaitPolicy Usual(microseconds spin, microseconds patience) {
  return {kPolls, patience, spin, Patient::kNone, microseconds(0)};
}

// No CPU is idle on which a worker could copy beside what this thread does meanwhile. An all_to_all of 2 MiB between
// two processes on two CPUs took 1.6 and 2.5 times as long where it went to workers, with 8 and 32 MiB as long.
WaitPolicy Full(microseconds spin, microseconds patience) {
  return {kPolls, patience, spin, Patient::kSharedMemory, microseconds(0)};
}

// A peer may need this thread's CPU: 4 processes on 2 CPUs take half the time with 2 polls. Workers would need three
// wake-ups, each behind peers that yield to each other (0.4 ms were measured). Those peers would then hand over, too,
// and one delay would last for a thousand operations: so a launching thread has ten times the patience.
WaitPolicy Crowded(microseconds spin, microseconds patience) {
  return {2, 10 * patience, spin, Patient::kAll, microseconds(50)};
}

}  // namespace

std::string WaitPolicy::Describe() const {
  std::string text = "poll for " + std::to_string(patience.count()) + " us";
  if (patient_with != Patient::kAll) {
    text +=
        patient_with == Patient::kNone ? " for small operations" : " for operations that are small or in shared memory";
    text += " and " + std::to_string(spin.count()) + " us for others";
  }
  text += ", with a yield after " + std::to_string(polls) + " polls";
  return text + (keep_cpu.count() > 0 ? " unless all on the CPU wait for the same" : "") + ", then sleep";
}

WaitPolicies::WaitPolicies(microseconds spin, microseconds patience)
    : processors_(AllowedCpus()),
      usual_(Usual(spin, patience)),
      full_(Full(spin, patience)),
      crowded_(Crowded(spin, patience)),
      current_(&usual_) {}

}  // namespace jaxring
