// What the kernel has counted on a TCP connection.
#pragma once

#include "transport/core/send_totals.h"

namespace jaxring {

// False if `fd` is no TCP socket, or the kernel does not count (before Linux 4.10).
bool GetTcpTotals(int fd, SendTotals* totals);

}  // namespace jaxring
