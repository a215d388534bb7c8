#include "quantize/quantize.h"

#include <algorithm>
#include <cstring>

#include "quantize/quantizers.h"
#include "reduce/kernels.h"

namespace jaxring {
namespace {

Rounding After(Rounding rounding, size_t blocks) {
  rounding.first_word += blocks * kQuantWords;
  return rounding;
}

// Calls `sum(first, elements, values)` for the elements of a row: all blocks that the own row fills at once, those that
// it does not one by one, with its values filled up with zeros.
template <class Sum>
void SumBlocks(size_t row_elements, const OwnValues& own, const Sum& sum) {
  const size_t there = own.values == nullptr ? row_elements : std::min(own.elements, row_elements);
  const size_t filled = there / kQuantBlock * kQuantBlock;
  if (filled > 0) sum(size_t{0}, filled, own.values);
  for (size_t first = filled; first < row_elements; first += kQuantBlock) {
    alignas(64) float padded[kQuantBlock] = {};
    if (own.values != nullptr && first < there) std::copy(own.values + first, own.values + there, padded);
    sum(first, std::min(kQuantBlock, row_elements - first), own.values == nullptr ? nullptr : padded);
  }
}

}  // namespace

const Quantizers& FindQuantizers(QuantFormat format) {
  const char* chosen = InstructionSet();
  const auto index = static_cast<size_t>(format);
#if defined(__x86_64__) && !defined(JAXRING_BASELINE_ONLY)
  if (std::strcmp(chosen, "avx512") == 0) return Avx512Quantizers()[index];
  if (std::strcmp(chosen, "avx2") == 0) return Avx2Quantizers()[index];
#endif
  (void)chosen;
  return BaselineQuantizers()[index];
}

size_t QuantShape::row_bytes() const { return QuantBlocks(row_elements) * FindQuantizers(format).block_bytes; }

void QuantizeRows(const QuantShape& shape, char* to, float* error, const float* from, size_t elements,
                  const Rounding& rounding) {
  const Quantizers& quantizers = FindQuantizers(shape.format);
  const size_t blocks = QuantBlocks(shape.row_elements), row_bytes = shape.row_bytes();
  for (size_t row = 0; row < shape.rows; ++row) {
    const size_t begin = std::min(row * shape.row_elements, elements);
    const size_t count = std::min(shape.row_elements, elements - begin);
    if (row == shape.own.row) {
      if (error != nullptr) std::fill_n(error + begin, count, 0.0f);
      continue;
    }
    char* codes = to + shape.own.place(row) * row_bytes;
    quantizers.encode(codes, error == nullptr ? nullptr : error + begin, from + begin, count,
                      After(rounding, row * blocks));
    // A block of zero bytes is one of zeros in every format.
    const size_t written = QuantBlocks(count) * quantizers.block_bytes;
    std::memset(codes + written, 0, row_bytes - written);
  }
}

void DequantizeRows(const QuantShape& shape, const DecodeTo& to, const char* from, size_t elements) {
  const Quantizers& quantizers = FindQuantizers(shape.format);
  const size_t row_bytes = shape.row_bytes();
  for (size_t row = 0; row < shape.rows; ++row) {
    if (row == shape.own.row) continue;
    const size_t begin = std::min(row * shape.row_elements, elements);
    const size_t count = std::min(shape.row_elements, elements - begin);
    quantizers.decode({to.values + begin, to.stream}, from + shape.own.place(row) * row_bytes, count);
  }
  if (to.stream) StreamFence();
}

void SumRows(const QuantShape& shape, float* to, const char* from, uint64_t divisor, const OwnValues& own) {
  const Quantizers& quantizers = FindQuantizers(shape.format);
  const size_t stride = shape.row_bytes();
  SumBlocks(shape.row_elements, own, [&](size_t first, size_t elements, const float* values) {
    const char* codes = from + first / kQuantBlock * quantizers.block_bytes;
    const EncodedRows rows = {codes, stride, shape.rows, shape.own, values};
    if (elements % kQuantBlock == 0) {
      quantizers.sum(to + first, rows, divisor, elements);
      return;
    }
    float sum[kQuantBlock];
    quantizers.sum(sum, rows, divisor, kQuantBlock);
    std::memcpy(to + first, sum, elements * sizeof(float));
  });
}

void SumRowsQuantized(const QuantShape& shape, char* to, float* error, const DecodeTo& decoded, const char* from,
                      uint64_t divisor, const OwnValues& own, const Rounding& rounding) {
  const Quantizers& quantizers = FindQuantizers(shape.format);
  const size_t stride = shape.row_bytes();
  SumBlocks(shape.row_elements, own, [&](size_t first, size_t elements, const float* values) {
    const size_t block = first / kQuantBlock, at = block * quantizers.block_bytes;
    const EncodedRows rows = {from + at, stride, shape.rows, shape.own, values};
    // The last block may be longer than what there is of the own row.
    const size_t wanted =
        decoded.values == nullptr ? 0 : std::min(elements, own.elements - std::min(own.elements, first));
    const DecodeTo here = {wanted == 0 ? nullptr : decoded.values + first, decoded.stream};
    quantizers.encode_sum(to + at, error == nullptr ? nullptr : error + first, wanted == elements ? here : DecodeTo{},
                          rows, divisor, elements, After(rounding, block));
    if (wanted > 0 && wanted < elements) quantizers.decode(here, to + at, wanted);
  });
  if (decoded.values != nullptr && decoded.stream) StreamFence();
}

}  // namespace jaxring
