// What the check for stalls remembers from one time to the next (engine/stalls.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/operation/operation.h"

namespace jaxring {

// An operation, or an execution that has not become one yet, that makes no progress.
struct Stall {
  uint64_t progress = 0;
  Clock::time_point since;  // the last progress
  int warnings = 0;         // given so far
  std::shared_ptr<Operation> op;
  std::string what;  // its description if there is no operation
};

}  // namespace jaxring
