// How threads wait for messages and for room in a ring: they poll, yield their CPU between polls, and then sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace jaxring {

// The larger operations in which a launching thread has the patience that it has with small ones.
enum class Patient : uint8_t {
  kNone,
  kSharedMemory,  // those whose messages all go through shared memory
  kAll,
};

struct WaitPolicy {
  using Duration = std::chrono::microseconds;

  // Polls in a row without a yield between them.
  int polls;
  // After so long without progress a launching thread leaves an operation to the workers, which sleep. `patience`:
  // where no other rank of its process needs the thread, and the operation is small; `spin`: otherwise, and for workers
  // before they sleep.
  Duration patience, spin;
  // With which operations beside small ones.
  Patient patient_with;
  // So long at most the launching thread does not yield while every process on its CPU waits for the same operation and
  // has sent its part. A yield to them costs two context switches and gains nothing.
  Duration keep_cpu;

  // "poll for 300 us, with a yield after 128 polls, then sleep".
  std::string Describe() const;
};

// The policies of an engine, of which one holds at a time.
class WaitPolicies {
 public:
  WaitPolicies(WaitPolicy::Duration spin, WaitPolicy::Duration patience);
  // Chooses by how many other processes of this host there are that may wait. Any thread may read meanwhile.
  void Choose(size_t others) {
    others += in_other_hosts_.load(std::memory_order_relaxed);
    const WaitPolicy* chosen = &usual_;
    if (others + 1 >= processors_) chosen = &full_;
    if (others >= processors_) chosen = &crowded_;
    current_.store(chosen, std::memory_order_relaxed);
  }
  // How many processes run on these CPUs that count as other hosts, as those of other containers do.
  void SetInOtherHosts(size_t count) { in_other_hosts_.store(count, std::memory_order_relaxed); }
  const WaitPolicy& current() const { return *current_.load(std::memory_order_relaxed); }

 private:
  const size_t processors_;
  std::atomic<size_t> in_other_hosts_{0};
  // `full_`: as many processes as CPUs. `crowded_`: more.
  const WaitPolicy usual_, full_, crowded_;
  std::atomic<const WaitPolicy*> current_;
};

}  // namespace jaxring
