// Processes that wait for each other belong on different processors.
//
// Two that take turns on one processor hand it to each other within microseconds, so the kernel's balancer, which does
// not move what ran a moment ago, leaves them there while others are idle: each exchange then costs two switches. So a
// waiting thread says where it is (`Bell::Sit`), and where two are on one processor and there is a free one, the one of
// the higher process moves. Where processes outnumber processors the balancer may leave three on one and one on the
// other, which takes twice as long as two and two: so one also moves to where two fewer wait. There who waits yields to
// those that share his processor, but not to one that waits in the same operation and has sent all that it has to
// (`Bell::Wants`): with 4 processes on 2 a small all-reduce in a program then takes one switch for each, not 1.8, and
// 0.85 of the time.
#pragma once

#include <sched.h>

#include <span>
#include <utility>

namespace jaxring {

// Where the thread of `process` on `processor` should go, or -1: it stays. `others`: the host's other processes and
// their seats, -1 for none. Of those on one processor only the highest process moves, so that not all do at once.
int ChooseCpu(int process, int processor, std::span<const std::pair<int, int>> others, const cpu_set_t& allowed);

// How many processors the calling thread may run on.
size_t AllowedCpus();

// Moves the calling thread to a processor; it may go on to others at once.
void MoveToCpu(int processor, const cpu_set_t& allowed);

}  // namespace jaxring
