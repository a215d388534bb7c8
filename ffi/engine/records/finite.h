// Checks the operands and results of operations for NaN and infinity, if the user asks for it (JAXRING_NAN_CHECK).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/operation/operation.h"

namespace jaxring {

struct NonFinite {
  uint64_t element;
  bool nan;  // otherwise infinite
};

// The first of `elements` that is NaN or infinite, or has such a part if it is complex. None for dtypes that hold
// neither.
std::optional<NonFinite> FirstNonFinite(DType dtype, const void* data, uint64_t elements);

// Describes the first NaN or infinity in this process's operands or results: the call, the rank and the element. Empty
// if there is none. If data is only moved, its operands alone are checked, since each result is some rank's operand.
std::string NonFiniteOperand(Operation& op);
std::string NonFiniteResult(Operation& op);

}  // namespace jaxring
