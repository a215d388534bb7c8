// What a connection has carried so far.
#pragma once

#include <cstdint>

namespace jaxring {

struct SendTotals {
  int64_t bytes = 0;    // that the peer's kernel has acknowledged
  int64_t busy_ns = 0;  // in which some were under way, without the time in which the peer had no room
};

}  // namespace jaxring
