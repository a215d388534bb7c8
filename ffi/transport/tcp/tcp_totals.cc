#include "transport/tcp/tcp_totals.h"

// The kernel's tcp_info, since the C library's lacks the later fields; <netinet/tcp.h> would define it again.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace jaxring {

bool GetTcpTotals(int fd, SendTotals* totals) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  if (bytes < offsetof(tcp_info, tcpi_rwnd_limited) + sizeof info.tcpi_rwnd_limited) return false;
  totals->bytes = static_cast<int64_t>(info.tcpi_bytes_acked);
  // Microseconds.
  const auto busy = static_cast<int64_t>(info.tcpi_busy_time), full = static_cast<int64_t>(info.tcpi_rwnd_limited);
  totals->busy_ns = std::max<int64_t>(0, busy - full) * 1000;
  return true;
}

}  // namespace jaxring
