// What a connection has carried so far.
#pragma once

#include <algorithm>
#include <cstdint>

namespace jaxring {

struct SendTotals {
  int64_t bytes = 0;    // that the peer's kernel has acknowledged
  int64_t busy_ns = 0;  // in which some were under way, without the time in which the peer had no room
  int64_t rate = 0;     // bytes a second while acknowledgements came, as the kernel saw it last; 0: it does not say
};

// What was sent from one reading of a connection's totals to a later one. The last bytes that a peer's kernel has and
// its process does not read yet are acknowledged up to 40 ms later (RFC 1122, 4.2.3.2): so the time is at most what the
// bytes take at the kernel's rate.
inline SendTotals Between(const SendTotals& earlier, const SendTotals& later) {
  SendTotals sent{std::max<int64_t>(0, later.bytes - earlier.bytes), later.busy_ns - earlier.busy_ns, later.rate};
  if (sent.rate <= 0) return sent;
  const double at_rate_ns = 1e9 * static_cast<double>(sent.bytes) / static_cast<double>(sent.rate);
  sent.busy_ns = std::min(sent.busy_ns, static_cast<int64_t>(at_rate_ns));
  return sent;
}

}  // namespace jaxring
