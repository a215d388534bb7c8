// The XLA FFI handlers for platform "Host", as plain functions that the Python module registers with JAX.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jaxring {

XLA_FFI_Error* CpuInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CpuCollective(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CpuDone(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CpuRagged(XLA_FFI_CallFrame* frame);

}  // namespace jaxring
