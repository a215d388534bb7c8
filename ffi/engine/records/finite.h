// Looks for NaN and infinity in the operands and results of operations, where one asks for it (JAXRING_NAN_CHECK).
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

// The first of `elements` that is neither a number nor, for complex ones, made of two. None in what cannot hold any.
std::optional<NonFinite> FirstNonFinite(DType dtype, const void* data, uint64_t elements);

// Says what is wrong with this process's operands, or with its results: which rank, where, and of which call. Empty if
// all is well. Data that is only moved is looked at as an operand alone, since the result is some rank's operand.
std::string NonFiniteOperand(Operation& op);
std::string NonFiniteResult(Operation& op);

}  // namespace jaxring
