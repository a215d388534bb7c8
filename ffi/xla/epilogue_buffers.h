// The buffers of a call with an epilogue, among the operands and results of its custom call: its parameters and
// operands behind the data, and its states behind the result. The partition id is the last operand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/operation/operation.h"
#include "xla/ffi/api/ffi.h"

namespace jaxring {

// Null if the call has another number of operands or results: then what has the plan refuses it.
inline std::unique_ptr<EpilogueBuffers> EpilogueOf(const xla::ffi::RemainingArgs& args,
                                                   const xla::ffi::RemainingRets& rets, int64_t operands,
                                                   int64_t states) {
  if (args.size() != static_cast<size_t>(operands) + 3 || rets.size() != static_cast<size_t>(states) + 1) {
    return nullptr;
  }
  auto buffers = std::make_unique<EpilogueBuffers>();
  auto argument = [&args](size_t i) -> EpilogueBuffers::Buffer {
    const xla::ffi::AnyBuffer buffer = *args.get<xla::ffi::AnyBuffer>(i);
    return {static_cast<char*>(buffer.untyped_data()), buffer.size_bytes()};
  };
  buffers->parameters = argument(1);
  for (size_t i = 0; i < static_cast<size_t>(operands); ++i) buffers->further.push_back(argument(i + 2));
  for (size_t i = 0; i < static_cast<size_t>(states); ++i) {
    xla::ffi::Result<xla::ffi::AnyBuffer> state = *rets.get<xla::ffi::AnyBuffer>(i + 1);
    buffers->states.push_back({static_cast<char*>(state->untyped_data()), state->size_bytes()});
  }
  return buffers;
}

}  // namespace jaxring
