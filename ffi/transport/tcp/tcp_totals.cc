#include "transport/tcp/tcp_totals.h"

// The kernel's tcp_info, since the C library's lacks the later fields; <netinet/tcp.h> would define it again.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

namespace jaxring {
namespace {

bool GetInfo(int fd, tcp_info* info) {
  *info = {};
  socklen_t bytes = sizeof *info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &bytes) == 0 &&
         bytes >= offsetof(tcp_info, tcpi_rwnd_limited) + sizeof info->tcpi_rwnd_limited;
}

// From this question for room on, one that has no answer tells of a failed path. The pause before the first is 200 ms
// at least, and doubles with each, so this one comes 800 ms after the one before. Later ones come up to two minutes
// apart, and to wait for two would be to find the failure too late.
constexpr unsigned kAnswered = 3;

}  // namespace

bool GetTcpTotals(int fd, SendTotals* totals) {
  tcp_info info;
  if (!GetInfo(fd, &info)) return false;
  totals->bytes = static_cast<int64_t>(info.tcpi_bytes_acked);
  // Microseconds.
  const auto busy = static_cast<int64_t>(info.tcpi_busy_time), full = static_cast<int64_t>(info.tcpi_rwnd_limited);
  totals->busy_ns = std::max<int64_t>(0, busy - full) * 1000;
  totals->rate = static_cast<int64_t>(info.tcpi_delivery_rate);
  return true;
}

bool GetTcpState(int fd, TcpState* state) {
  tcp_info info;
  int queued = 0;
  if (!GetInfo(fd, &info) || ioctl(fd, SIOCOUTQ, &queued) != 0) return false;
  *state = {info.tcpi_unacked > 0,
            info.tcpi_retransmits > 0,
            std::chrono::milliseconds(info.tcpi_last_ack_recv),
            static_cast<int64_t>(info.tcpi_bytes_acked),
            static_cast<int64_t>(info.tcpi_busy_time),
            static_cast<int64_t>(info.tcpi_rwnd_limited),
            queued,
            info.tcpi_probes > (info.tcpi_backoff >= kAnswered ? 0 : 1)};
  return true;
}

}  // namespace jaxring
