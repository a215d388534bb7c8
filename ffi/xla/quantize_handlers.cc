#include "xla/quantize_handlers.h"

#include <algorithm>
#include <cstdint>

#include "engine/operation/float_mode.h"
#include "engine/operation/pages.h"
#include "quantize/quantize.h"
#include "xla/ffi/api/ffi.h"

namespace jaxring {

namespace ffi = xla::ffi;

namespace {

// What every handler is told of the encoded array. jaxring/compress/native.py writes these attributes.
struct Encoded {
  QuantShape shape;
  size_t bytes() const { return shape.encoded_rows() * shape.row_bytes(); }
};

// What is done with the row of the rank itself. The numbers are those of jaxring/compress/native.py.
enum class Own : int64_t { kEncoded = 0, kSkipped = 1, kLeftOut = 2 };

// A result of this size does not stay in a cache until it is used.
constexpr size_t kStreamBytes = size_t{4} << 20;

ffi::Error Refuse() {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "this program was lowered by another version of jaxring: lower it again");
}

bool Read(int64_t format, int64_t rows, int64_t row_elements, Encoded* encoded) {
  if (format < 0 || format >= kQuantFormatCount || rows < 1 || row_elements < 0) return false;
  encoded->shape = {static_cast<QuantFormat>(format), static_cast<size_t>(rows), static_cast<size_t>(row_elements)};
  return true;
}

bool ReadOwn(int64_t own, const ffi::AnyBuffer& key, Encoded* encoded) {
  const auto what = static_cast<Own>(own);
  if (key.size_bytes() != kQuantKeyWords * sizeof(uint32_t)) return false;
  if (what == Own::kEncoded) return true;
  if (what != Own::kSkipped && what != Own::kLeftOut) return false;
  const auto row = size_t{static_cast<const uint32_t*>(key.untyped_data())[2]};
  encoded->shape.own = {row, what == Own::kLeftOut};
  return row < encoded->shape.rows;
}

Rounding MakeRounding(bool stochastic, const ffi::AnyBuffer& key, uint32_t hop, int64_t first_word) {
  return RoundingOf(static_cast<const uint32_t*>(key.untyped_data()), stochastic, hop,
                    static_cast<uint64_t>(first_word));
}

// Whether a buffer has `count` elements of float32.
bool HasFloats(const ffi::AnyBuffer& buffer, int64_t count) {
  return buffer.element_type() == ffi::F32 && static_cast<int64_t>(buffer.element_count()) == count;
}

// A result of which a handler writes `bytes` from `at` on. Huge pages are asked for the whole of it: parts that are
// written by several calls would share pages at their ends.
template <class T>
T* Written(ffi::Result<ffi::AnyBuffer>& result, size_t at, size_t bytes) {
  char* data = static_cast<char*>(result->untyped_data());
  if (PreparePages(data, result->size_bytes()) == Pages::kFresh) PopulatePages(data + at, bytes);
  return reinterpret_cast<T*>(data);
}

template <class T>
T* Written(ffi::Result<ffi::AnyBuffer>& result) {
  return Written<T>(result, 0, result->size_bytes());
}

float* ErrorOf(const ffi::RemainingRets& rets, size_t index, size_t elements, bool* fits) {
  if (rets.size() <= index) return nullptr;
  ffi::Result<ffi::AnyBuffer> error = *rets.get<ffi::AnyBuffer>(index);
  *fits = error->element_type() == ffi::F32 && error->element_count() == elements;
  return *fits ? Written<float>(error) : nullptr;
}

// Encodes `values` as rows. Results: the codes, and where wanted what they leave out.
ffi::Error Quantize(ffi::AnyBuffer values, ffi::AnyBuffer key, ffi::RemainingRets rets, int64_t format, int64_t rows,
                    int64_t row_elements, int64_t count, int64_t own, bool stochastic, int64_t first_word) {
  Encoded encoded;
  if (!Read(format, rows, row_elements, &encoded) || !ReadOwn(own, key, &encoded) || rets.size() < 1) return Refuse();
  ffi::Result<ffi::AnyBuffer> codes = *rets.get<ffi::AnyBuffer>(0);
  bool fits = true;
  float* error = ErrorOf(rets, 1, static_cast<size_t>(count), &fits);
  if (!fits || !HasFloats(values, count) || codes->size_bytes() != encoded.bytes()) return Refuse();
  const ScopedFloatMode mode(kIeeeFloatMode);
  QuantizeRows(encoded.shape, Written<char>(codes), error, static_cast<const float*>(values.untyped_data()),
               static_cast<size_t>(count), MakeRounding(stochastic, key, 0, first_word));
  return ffi::Error::Success();
}

// Sums rows. Operands: the codes, the key, and where the rank's own row is not encoded the array of which it is a part.
// Results: the sum as float32; or as codes, then what Dequantize is to complete, of which it is the own row, and then
// where wanted what the codes leave out.
ffi::Error SumQuantized(ffi::AnyBuffer codes, ffi::AnyBuffer key, ffi::RemainingArgs args, ffi::RemainingRets rets,
                        int64_t format, int64_t rows, int64_t row_elements, int64_t count, int64_t own, int64_t divisor,
                        bool stochastic, int64_t first_word) {
  Encoded encoded;
  if (!Read(format, rows, row_elements, &encoded) || !ReadOwn(own, key, &encoded) || rets.size() < 1) return Refuse();
  const QuantShape& shape = encoded.shape;
  OwnValues own_values;
  size_t begin = 0;
  if (shape.own.row != OwnRow::kNone) {
    if (args.size() != 1) return Refuse();
    const ffi::AnyBuffer values = *args.get<ffi::AnyBuffer>(0);
    if (!HasFloats(values, count)) return Refuse();
    begin = std::min(shape.own.row * shape.row_elements, static_cast<size_t>(count));
    own_values = {static_cast<const float*>(values.untyped_data()) + begin,
                  std::min(shape.row_elements, static_cast<size_t>(count) - begin)};
  }
  ffi::Result<ffi::AnyBuffer> sum = *rets.get<ffi::AnyBuffer>(0);
  bool fits = true;
  float* error = ErrorOf(rets, 2, shape.row_elements, &fits);
  if (!fits || codes.size_bytes() != encoded.bytes()) return Refuse();
  const auto* from = static_cast<const char*>(codes.untyped_data());
  const ScopedFloatMode mode(kIeeeFloatMode);
  if (sum->element_type() == ffi::F32) {
    if (sum->element_count() != shape.row_elements) return Refuse();
    SumRows(shape, Written<float>(sum), from, static_cast<uint64_t>(divisor), own_values);
    return ffi::Error::Success();
  }
  if (sum->size_bytes() != shape.row_bytes() || shape.own.row == OwnRow::kNone || rets.size() < 2) return Refuse();
  ffi::Result<ffi::AnyBuffer> whole = *rets.get<ffi::AnyBuffer>(1);
  if (!HasFloats(*whole, count)) return Refuse();
  auto* decoded = Written<float>(whole, begin * sizeof(float), own_values.elements * sizeof(float)) + begin;
  SumRowsQuantized(shape, Written<char>(sum), error, {decoded, own_values.elements * sizeof(float) >= kStreamBytes},
                   from, static_cast<uint64_t>(divisor), own_values, MakeRounding(stochastic, key, 1, first_word));
  return ffi::Error::Success();
}

// Decodes rows. Operands: the codes, the key, and where the own row is not wanted the array whose buffer the result
// takes, which has it.
ffi::Error Dequantize(ffi::AnyBuffer codes, ffi::AnyBuffer key, ffi::RemainingArgs args,
                      ffi::Result<ffi::AnyBuffer> values, int64_t format, int64_t rows, int64_t row_elements,
                      int64_t count, int64_t own) {
  Encoded encoded;
  if (!Read(format, rows, row_elements, &encoded) || !ReadOwn(own, key, &encoded)) return Refuse();
  if (args.size() != (encoded.shape.own.row == OwnRow::kNone ? 0 : 1)) return Refuse();
  if (!HasFloats(*values, count) || codes.size_bytes() != encoded.bytes()) return Refuse();
  const ScopedFloatMode mode(kIeeeFloatMode);
  DequantizeRows(encoded.shape, {Written<float>(values), values->size_bytes() >= kStreamBytes},
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
                             .Attr<int64_t>("count")
                             .Attr<int64_t>("own")
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
                             .RemainingArgs()
                             .RemainingRets()
                             .Attr<int64_t>("format")
                             .Attr<int64_t>("rows")
                             .Attr<int64_t>("row_elements")
                             .Attr<int64_t>("count")
                             .Attr<int64_t>("own")
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
                             .Arg<ffi::AnyBuffer>()
                             .RemainingArgs()
                             .Ret<ffi::AnyBuffer>()
                             .Attr<int64_t>("format")
                             .Attr<int64_t>("rows")
                             .Attr<int64_t>("row_elements")
                             .Attr<int64_t>("count")
                             .Attr<int64_t>("own")
                             .To(Dequantize)
                             .release();
  return handler->Call(frame);
}

}  // namespace jaxring
