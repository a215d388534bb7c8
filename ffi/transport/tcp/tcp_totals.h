// What the kernel has counted on a TCP connection.
#pragma once

#include <chrono>
#include <cstdint>

#include "transport/core/send_totals.h"

namespace jaxring {

// False if `fd` is no TCP socket, or the kernel does not count (before Linux 4.10).
bool GetTcpTotals(int fd, SendTotals* totals);

struct TcpState {
  bool unacked;                        // bytes are under way
  bool retransmits;                    // the last of them have been sent again, and are not acknowledged
  std::chrono::milliseconds last_ack;  // since the peer's kernel has sent an acknowledgement
  int64_t acked;                       // bytes, since the connection began
  int64_t busy_us;                     // for so long bytes were under way or waited
  int64_t full_us;                     // for so long of that the peer's process had not read what was sent before
  int64_t queued;                      // bytes, written and not acknowledged
  // The kernel has asked whether there is room again, or whether the peer is there, and had no answer: twice in a row,
  // or once after a long pause. Linux leaves a single question unanswered that comes within 500 ms of another
  // (tcp_invalid_ratelimit).
  bool probes = false;
};
// As GetTcpTotals.
bool GetTcpState(int fd, TcpState* state);

}  // namespace jaxring
