// The XLA FFI handlers of compressed collectives' arithmetic for platform "Host": they move no data between ranks.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jaxring {

XLA_FFI_Error* CpuQuantize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CpuSumQuantized(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CpuDequantize(XLA_FFI_CallFrame* frame);

}  // namespace jaxring
