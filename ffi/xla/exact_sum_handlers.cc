#include "xla/exact_sum_handlers.h"

#include <cstdint>
#include <string>

#include "reduce/exact/digits.h"
#include "xla/ffi/api/ffi.h"

namespace jaxring {
namespace {

namespace ffi = xla::ffi;

DType DTypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::F16:
      return DType::kF16;
    case ffi::BF16:
      return DType::kBF16;
    case ffi::F32:
      return DType::kF32;
    case ffi::F64:
      return DType::kF64;
    default:
      return DType::kBool;
  }
}

ffi::Error Refuse(const char* what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    std::string("jaxring.reproducible_sum: ") + what + "; lower the program again with this version");
}

// Terms are [outer, count, inner], words [outer, words, inner], sums [outer, inner].
ffi::Error Give(ffi::AnyBuffer terms, ffi::ResultBuffer<ffi::U32> words, int64_t width) {
  const DType dtype = DTypeOf(terms.element_type());
  const auto in = terms.dimensions(), out = words->dimensions();
  if (width < 1 || width > 32 || in.size() != 3 || out.size() != 3 || out[0] != in[0] || out[2] != in[2] ||
      out[1] != ExactWords(dtype, static_cast<int>(width)) || out[1] == 0) {
    return Refuse("the words do not fit the terms");
  }
  GiveExactSums(dtype, static_cast<int>(width), terms.untyped_data(), static_cast<size_t>(in[0]),
                static_cast<size_t>(in[1]), static_cast<size_t>(in[2]), words->typed_data());
  return ffi::Error::Success();
}

ffi::Error Round(ffi::Buffer<ffi::U32> words, ffi::Result<ffi::AnyBuffer> sums, int64_t width) {
  const DType dtype = DTypeOf(sums->element_type());
  const auto in = words.dimensions(), out = sums->dimensions();
  if (width < 1 || width > 32 || in.size() != 3 || out.size() != 2 || out[0] != in[0] || out[1] != in[2] ||
      in[1] != ExactWords(dtype, static_cast<int>(width)) || in[1] == 0) {
    return Refuse("the sums do not fit the words");
  }
  RoundExactSums(dtype, static_cast<int>(width), words.typed_data(), static_cast<size_t>(in[0]),
                 static_cast<size_t>(in[2]), sums->untyped_data());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_Error* CpuGiveExactSums(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::Buffer<ffi::U32>>().Attr<int64_t>("width").To(Give).release();
  return handler->Call(frame);
}

XLA_FFI_Error* CpuRoundExactSums(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::U32>>().Ret<ffi::AnyBuffer>().Attr<int64_t>("width").To(Round).release();
  return handler->Call(frame);
}

}  // namespace jaxring
