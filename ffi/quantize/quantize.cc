#include "quantize/quantize.h"

#include <algorithm>
#include <cstring>

#include "quantize/quantizers.h"
#include "reduce/kernels.h"

namespace jaxring {
namespace {

// A result of this size does not stay in a cache until it is used.
constexpr size_t kStreamBytes = size_t{4} << 20;

Rounding After(Rounding rounding, size_t blocks) {
  rounding.first_word += blocks * kQuantWords;
  return rounding;
}

// A block of the own row, filled up with zeros in `padded` if it is short.
const float* OwnBlock(const OwnValues& own, size_t first, float* padded) {
  if (own.values == nullptr) return nullptr;
  const size_t count = std::min(kQuantBlock, own.elements - std::min(own.elements, first));
  if (count == kQuantBlock) return own.values + first;
  std::fill(std::copy_n(own.values + std::min(own.elements, first), count, padded), padded + kQuantBlock, 0.0f);
  return padded;
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

void DequantizeRows(const QuantShape& shape, float* to, const char* from, size_t elements, const char* own_codes) {
  const Quantizers& quantizers = FindQuantizers(shape.format);
  const size_t row_bytes = shape.row_bytes();
  const bool stream = elements * sizeof(float) >= kStreamBytes;
  for (size_t row = 0; row < shape.rows; ++row) {
    const size_t begin = std::min(row * shape.row_elements, elements);
    const size_t count = std::min(shape.row_elements, elements - begin);
    const char* codes = row == shape.own.row ? own_codes : from + shape.own.place(row) * row_bytes;
    quantizers.decode(to + begin, codes, count, stream);
  }
  if (stream) StreamFence();
}

void SumRows(const QuantShape& shape, float* to, const char* from, uint64_t divisor, const OwnValues& own) {
  const Quantizers& quantizers = FindQuantizers(shape.format);
  const size_t row_bytes = shape.row_bytes();
  alignas(64) float padded[kQuantBlock];
  for (size_t block = 0; block < QuantBlocks(shape.row_elements); ++block) {
    const size_t first = block * kQuantBlock, count = std::min(kQuantBlock, shape.row_elements - first);
    const char* codes = from + block * quantizers.block_bytes;
    const float* values = OwnBlock(own, first, padded);
    if (count == kQuantBlock) {
      quantizers.sum_block(to + first, codes, row_bytes, shape.rows, divisor, shape.own, values);
      continue;
    }
    float sum[kQuantBlock];
    quantizers.sum_block(sum, codes, row_bytes, shape.rows, divisor, shape.own, values);
    std::memcpy(to + first, sum, count * sizeof(float));
  }
}

void SumRowsQuantized(const QuantShape& shape, char* to, float* error, const char* from, uint64_t divisor,
                      const OwnValues& own, const Rounding& rounding) {
  const Quantizers& quantizers = FindQuantizers(shape.format);
  const size_t row_bytes = shape.row_bytes();
  alignas(64) float sum[kQuantBlock], padded[kQuantBlock];
  for (size_t block = 0; block < QuantBlocks(shape.row_elements); ++block) {
    const size_t first = block * kQuantBlock, count = std::min(kQuantBlock, shape.row_elements - first);
    const size_t at = block * quantizers.block_bytes;
    quantizers.sum_block(sum, from + at, row_bytes, shape.rows, divisor, shape.own, OwnBlock(own, first, padded));
    quantizers.encode(to + at, error == nullptr ? nullptr : error + first, sum, count, After(rounding, block));
  }
}

}  // namespace jaxring
