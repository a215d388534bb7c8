// The XLA FFI handlers for platform "CUDA", as plain function pointers for the Python module to hand to JAX. Built with
// JAXRING_FAKE_GPU they are handlers for platform "Host" that run everything else on the fake GPU, for tests.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jaxring::cuda {

XLA_FFI_Error* CudaInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaCollective(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaRagged(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaStart(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaJoin(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaDone(XLA_FFI_CallFrame* frame);

}  // namespace jaxring::cuda
