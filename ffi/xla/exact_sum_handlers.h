// The XLA FFI handlers of jaxring.reproducible_sum for platform "Host": both ends of the sum, which no rank waits in.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jaxring {

// [outer, count, inner] terms to the integers of their exact sums, and the sums of such integers to rounded sums.
XLA_FFI_Error* CpuGiveExactSums(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CpuRoundExactSums(XLA_FFI_CallFrame* frame);

}  // namespace jaxring
