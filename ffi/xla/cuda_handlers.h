// The XLA FFI handlers for platform "CUDA", as plain function pointers for the Python module to hand to JAX. Built with
// JAXRING_FAKE_GPU they are handlers for platform "Host" that run everything else on the fake GPU, for tests.
#pragma once

#include <span>

#include "xla/ffi/api/c_api.h"

namespace jaxring::cuda {

struct Handler {
  const char* name;  // as jaxring/runtime/cuda/service.py knows it
  XLA_FFI_Error* (*call)(XLA_FFI_CallFrame* frame);
};

std::span<const Handler> Handlers();

}  // namespace jaxring::cuda
