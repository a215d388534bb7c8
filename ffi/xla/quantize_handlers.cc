#include "xla/quantize_handlers.h"

#include <algorithm>
#include <cstdint>

#include "engine/operation/float_mode.h"
#include "quantize/quantize.h"
#include "xla/ffi/api/ffi.h"

namespace jaxring {

namespace ffi = xla::ffi;

namespace {

// What every handler is told of the encoded array. jaxring/compress/native.py writes these attributes.
struct Encoded {
  QuantShape shape;
  size_t bytes() const { return shape.rows * shape.row_bytes(); }
};

ffi::Error Refuse() {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "this program was lowered by another version of jaxring: lower it again");
}

bool Read(int64_t format, int64_t rows, int64_t row_elements, Encoded* encoded) {
  if (format < 0 || format >= kQuantFormatCount || rows < 1 || row_elements < 0) return false;
  encoded->shape = {static_cast<QuantFormat>(format), static_cast<size_t>(rows), static_cast<size_t>(row_elements)};
  return true;
}

// `key`: the seed and the rank. The two hops of an all-reduce have streams of their own.
Rounding MakeRounding(bool stochastic, const ffi::AnyBuffer& key, int64_t hop, int64_t first_word) {
  const auto* words = static_cast<const uint32_t*>(key.untyped_data());
  return {stochastic, words[0], 2 * words[1] + static_cast<uint32_t>(hop), static_cast<uint64_t>(first_word)};
}

// Whether [first, first + count) lies in a buffer of float32.
bool Within(const ffi::AnyBuffer& buffer, int64_t first, int64_t count) {
  return first >= 0 && count >= 0 && buffer.element_type() == ffi::F32 &&
         static_cast<size_t>(first) + static_cast<size_t>(count) <= buffer.element_count();
}

float* ErrorOf(const ffi::RemainingRets& rets, size_t index, size_t elements, bool* fits) {
  if (rets.size() <= index) return nullptr;
  ffi::Result<ffi::AnyBuffer> error = *rets.get<ffi::AnyBuffer>(index);
  *fits = error->element_type() == ffi::F32 && error->element_count() == elements;
  return static_cast<float*>(error->untyped_data());
}

// Encodes elements [first, first + count) of `values` as rows. Results: the codes, and where wanted what they leave
// out.
ffi::Error Quantize(ffi::AnyBuffer values, ffi::AnyBuffer key, ffi::RemainingRets rets, int64_t format, int64_t rows,
                    int64_t row_elements, int64_t first, int64_t count, bool stochastic, int64_t first_word) {
  Encoded encoded;
  if (!Read(format, rows, row_elements, &encoded) || rets.size() < 1 || key.size_bytes() != 8) return Refuse();
  ffi::Result<ffi::AnyBuffer> codes = *rets.get<ffi::AnyBuffer>(0);
  bool fits = true;
  float* error = ErrorOf(rets, 1, static_cast<size_t>(count), &fits);
  if (!fits || !Within(values, first, count) || codes->size_bytes() != encoded.bytes()) return Refuse();
  const ScopedFloatMode mode(kIeeeFloatMode);
  QuantizeRows(encoded.shape, static_cast<char*>(codes->untyped_data()), error,
               static_cast<const float*>(values.untyped_data()) + first, static_cast<size_t>(count),
               MakeRounding(stochastic, key, 0, first_word));
  return ffi::Error::Success();
}

// Sums rows. Results: the sum as float32, or as codes, then where wanted what those leave out.
ffi::Error SumQuantized(ffi::AnyBuffer codes, ffi::AnyBuffer key, ffi::RemainingRets rets, int64_t format, int64_t rows,
                        int64_t row_elements, int64_t divisor, bool stochastic, int64_t first_word) {
  Encoded encoded;
  if (!Read(format, rows, row_elements, &encoded) || rets.size() < 1 || key.size_bytes() != 8) return Refuse();
  const QuantShape& shape = encoded.shape;
  ffi::Result<ffi::AnyBuffer> sum = *rets.get<ffi::AnyBuffer>(0);
  bool fits = true;
  float* error = ErrorOf(rets, 1, shape.row_elements, &fits);
  if (!fits || codes.size_bytes() != encoded.bytes()) return Refuse();
  const auto* from = static_cast<const char*>(codes.untyped_data());
  const ScopedFloatMode mode(kIeeeFloatMode);
  if (sum->element_type() == ffi::F32) {
    if (sum->element_count() != shape.row_elements) return Refuse();
    SumRows(shape, static_cast<float*>(sum->untyped_data()), from, static_cast<uint64_t>(divisor));
  } else {
    if (sum->size_bytes() != shape.row_bytes()) return Refuse();
    SumRowsQuantized(shape, static_cast<char*>(sum->untyped_data()), error, from, static_cast<uint64_t>(divisor),
                     MakeRounding(stochastic, key, 1, first_word));
  }
  return ffi::Error::Success();
}

// Decodes rows to elements [first, first + count) of the result. Operands: the codes, and where the result has other
// elements, too, the array whose buffer it takes.
ffi::Error Dequantize(ffi::AnyBuffer codes, ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer> values, int64_t format,
                      int64_t rows, int64_t row_elements, int64_t first, int64_t count) {
  Encoded encoded;
  if (!Read(format, rows, row_elements, &encoded)) return Refuse();
  if (!Within(*values, first, count) || codes.size_bytes() != encoded.bytes()) return Refuse();
  const ScopedFloatMode mode(kIeeeFloatMode);
  DequantizeRows(encoded.shape, static_cast<float*>(values->untyped_data()) + first,
                 static_cast<const char*>(codes.untyped_data()), static_cast<size_t>(count));
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_Error* CpuQuantize(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingRets()
                             .Attr<int64_t>("format")
                             .Attr<int64_t>("rows")
                             .Attr<int64_t>("row_elements")
                             .Attr<int64_t>("first")
                             .Attr<int64_t>("count")
                             .Attr<bool>("stochastic")
                             .Attr<int64_t>("first_word")
                             .To(Quantize)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CpuSumQuantized(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingRets()
                             .Attr<int64_t>("format")
                             .Attr<int64_t>("rows")
                             .Attr<int64_t>("row_elements")
                             .Attr<int64_t>("divisor")
                             .Attr<bool>("stochastic")
                             .Attr<int64_t>("first_word")
                             .To(SumQuantized)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CpuDequantize(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingArgs()
                             .Ret<ffi::AnyBuffer>()
                             .Attr<int64_t>("format")
                             .Attr<int64_t>("rows")
                             .Attr<int64_t>("row_elements")
                             .Attr<int64_t>("first")
                             .Attr<int64_t>("count")
                             .To(Dequantize)
                             .release();
  return handler->Call(frame);
}

}  // namespace jaxring
