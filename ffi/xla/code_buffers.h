// The buffers of an all-reduce in codes, among the operands and results of its custom call: the key behind the data,
// and what codes leave out, where that is wanted, behind the result. The partition id is the last operand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/operation/operation.h"
#include "quantize/quantize.h"
#include "xla/ffi/api/ffi.h"

namespace jaxring {

// Null if the call has other operands or results: then what has the plan refuses it.
inline std::unique_ptr<CodeBuffers> CodesOf(const xla::ffi::RemainingArgs& args, const xla::ffi::RemainingRets& rets) {
  if (args.size() != 3 || rets.size() < 1 || rets.size() > 2) return nullptr;
  const xla::ffi::AnyBuffer key = *args.get<xla::ffi::AnyBuffer>(1);
  if (key.size_bytes() != kQuantKeyWords * sizeof(uint32_t)) return nullptr;
  auto buffers = std::make_unique<CodeBuffers>();
  buffers->key = static_cast<const uint32_t*>(key.untyped_data());
  buffers->error = nullptr;
  if (rets.size() == 2) {
    xla::ffi::Result<xla::ffi::AnyBuffer> error = *rets.get<xla::ffi::AnyBuffer>(1);
    xla::ffi::Result<xla::ffi::AnyBuffer> values = *rets.get<xla::ffi::AnyBuffer>(0);
    if (error->size_bytes() != values->size_bytes()) return nullptr;
    buffers->error = static_cast<float*>(error->untyped_data());
  }
  return buffers;
}

}  // namespace jaxring
