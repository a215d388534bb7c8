// Processes that wait for each other belong on different processors.
//
// Two that take turns on one processor hand it to each other within microseconds, so the kernel's balancer, which does
// not move what ran a moment ago, leaves them there while others are idle: each exchange then costs two switches. So a
// waiting thread says where it is (`Bell::Sit`), and where two are on one processor and there is a free one, the one of
// the higher process moves.
#pragma once

#include <sched.h>

#include <span>
#include <utility>

namespace jaxring {

// Where the thread of `process` on `processor` should go, or -1: it stays. `others`: the host's other processes and
// their seats, -1 for none. Nobody moves where there are more processes than processors allowed.
int SeatApart(int process, int processor, std::span<const std::pair<int, int>> others, const cpu_set_t& allowed);

// Moves the calling thread to a processor; it may go on to others at once.
void MoveTo(int processor, const cpu_set_t& allowed);

}  // namespace jaxring
