// CPU placement of waiters: processes that wait for each other run on different CPUs.
//
// Two processes that take turns on one CPU hand it to each other within microseconds. The kernel's load balancer does
// not move a thread that has just run, so it leaves them there while other CPUs are idle, and each exchange costs two
// context switches. So each waiting thread publishes its CPU in the process's doorbell. If two wait on one CPU and
// another is free, the one of the higher process number moves. If there are more processes than CPUs, the balancer may
// leave three on one CPU and one on the other, which takes twice as long as two and two. So a waiter also moves to a
// CPU with two fewer waiters. On such a host a waiter yields its CPU to the others on it, but not to one that waits for
// the same operation and has sent its part. With 4 processes on 2 CPUs a small all-reduce in a program then takes one
// switch for each process instead of 1.8, and 0.85 of the time.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

#include "transport/core/doorbell.h"
#include "transport/core/links.h"

namespace jaxring {

// The CPU to which the waiting thread of `process` on `processor` should move, or -1 to stay. `others` has the host's
// other processes and the CPUs on which they wait, -1 for none. Of the processes on one CPU only the highest moves, so
// that they do not all move at once.
int ChooseCpu(int process, int processor, std::span<const std::pair<int, int>> others, const cpu_set_t& allowed);

// The number of CPUs that the calling thread may run on.
size_t AllowedCpus();

// Moves the calling thread to a CPU, and then allows it on all of `allowed` again.
void MoveToCpu(int processor, const cpu_set_t& allowed);

class WaiterPlacement {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Chosen {
    int cpu;
    bool moved;
  };
  // The launching thread of `process` begins to wait in `operation`: publishes its CPU in the process's doorbell, and
  // moves it off a CPU on which a thread of another process waits.
  Chosen Begin(int process, uint64_t operation, Doorbell& doorbell, const Links& links, Time now);

 private:
  // When a launching thread last found another waiter on its CPU.
  std::atomic<Time> considered_at_{Time{}};
};

}  // namespace jaxring
