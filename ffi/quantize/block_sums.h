// One instruction set's sums of blocks over the rows of an encoded array, and its table of functions. Per instruction
// set: see reduce/vectors.h.
#pragma once

#include "quantize/blocks.h"

namespace jaxring::JAXRING_ISA {
namespace {

// What the sums of all blocks have in common, and one of the blocks.
struct Summands {
  JAXRING_INLINE explicit Summands(const EncodedRows& of, uint64_t divisor)
      : rows(of), mean(divisor != 0), factor(mean ? 1.0f / static_cast<float>(divisor) : 1.0f) {}

  const EncodedRows& rows;
  bool mean;
  float factor;

  template <class Code>
  JAXRING_INLINE const char* codes(size_t row, size_t block) const {
    return rows.codes + rows.own.place(row) * rows.stride + block * Layout<Code>::kBytes;
  }
  JAXRING_INLINE const float* own(size_t block) const { return rows.values + block * kQuantBlock; }
};

// The values that a row has in a block, of the words from `word` on: its own ones, or decoded. It has no NaN or
// infinity among its codes. `use(place, value)` gets a vector of each place.
template <class Code, class Use, int... kPlaces>
JAXRING_INLINE void UseRow(const Summands& of, size_t row, size_t block, size_t word, const Use& use,
                           std::integer_sequence<int, kPlaces...>) {
  if (row == of.rows.own.row) {
    const float* values = of.own(block) + word;
    (use(kPlaces, Load(values + kPlaces * Layout<Code>::kWords)), ...);
    return;
  }
  const char* codes = of.codes<Code>(row, block);
  const Bits words = LoadVector<uint32_t>(codes + Layout<Code>::kScaleBytes + 4 * word);
  if constexpr (Code::kScaled) {
    uint32_t stored;
    __builtin_memcpy(&stored, codes, sizeof stored);
    const Float scale = Broadcast(FloatOf(stored));
    (use(kPlaces, Code::template Value<kPlaces>(words) * scale), ...);
  } else {
    (use(kPlaces, Code::template Value<kPlaces>(words)), ...);
  }
}

// sum[i] = row 0's value + row 1's + ..., or the mean. Returns the largest magnitude in each lane. No row may have NaN
// or infinity among its codes.
template <class Code>
JAXRING_INLINE Word SumFinite(float* sum, const Summands& of, size_t block) {
  constexpr auto kPlaces = std::make_integer_sequence<int, Layout<Code>::kPerWord>();
  constexpr size_t kWords = Layout<Code>::kWords;
  // As much of a block at once as fits in the registers: AVX-512 has 32, and 8 of them hold a block.
  constexpr size_t kStep = kVectorBytes == 64 ? kWords : kFloatLanes;
  const Float factor = Broadcast(of.factor);
  Word most = {};
  for (size_t j = 0; j < kWords; j += kStep) {
    Float total[kStep / kFloatLanes][Layout<Code>::kPerWord];
    for (size_t k = 0; k < kStep / kFloatLanes; ++k) {
      const auto begin = [&](int place, Float value) { total[k][place] = value; };
      UseRow<Code>(of, 0, block, j + k * kFloatLanes, begin, kPlaces);
    }
    for (size_t row = 1; row < of.rows.rows; ++row) {
      for (size_t k = 0; k < kStep / kFloatLanes; ++k) {
        const auto add = [&](int place, Float value) { total[k][place] = total[k][place] + value; };
        UseRow<Code>(of, row, block, j + k * kFloatLanes, add, kPlaces);
      }
    }
    for (size_t k = 0; k < kStep / kFloatLanes; ++k) {
      for (int place = 0; place < Layout<Code>::kPerWord; ++place) {
        const Float value = of.mean ? total[k][place] * factor : total[k][place];
        most = Larger(most, value);
        StoreVector<float>(reinterpret_cast<char*>(sum + place * kWords + j + k * kFloatLanes), value);
      }
    }
  }
  return most;
}

template <class Code>
[[gnu::noinline]] void SumMarked(float* sum, const Summands& of, size_t block) {
  alignas(64) float decoded[kQuantBlock];
  for (size_t row = 0; row < of.rows.rows; ++row) {
    const float* values = decoded;
    if (row == of.rows.own.row) {
      values = of.own(block);
    } else {
      DecodeBlock<Code, false>(decoded, of.codes<Code>(row, block));
    }
    for (size_t i = 0; i < kQuantBlock; ++i) sum[i] = row == 0 ? values[i] : sum[i] + values[i];
  }
  for (size_t i = 0; i < kQuantBlock && of.mean; ++i) sum[i] *= of.factor;
}

template <class Code>
JAXRING_INLINE bool AnyMarked(const Summands& of, size_t block) {
  uint32_t signs = 0;
  for (size_t row = 0; row < of.rows.rows && Code::kScaled; ++row) {
    if (row == of.rows.own.row) continue;
    uint32_t stored;
    __builtin_memcpy(&stored, of.codes<Code>(row, block), sizeof stored);
    signs |= stored;
  }
  return (signs & kSignBit) != 0;
}

// Returns the largest magnitude of the sum, as LargestMagnitude does.
template <class Code>
JAXRING_INLINE uint32_t SumBlock(float* sum, const Summands& of, size_t block) {
  if (AnyMarked<Code>(of, block)) [[unlikely]] {
    SumMarked<Code>(sum, of, block);
    return LargestMagnitude(sum);
  }
  return static_cast<uint32_t>(LargestLane<kVectorBytes>(SumFinite<Code>(sum, of, block)));
}

template <class Code>
void Sum(float* sum, const EncodedRows& rows, uint64_t divisor, size_t elements) {
  const Summands of(rows, divisor);
  for (size_t block = 0; block < elements / kQuantBlock; ++block) {
    SumBlock<Code>(sum + block * kQuantBlock, of, block);
  }
}

template <class Code, bool kStochastic>
JAXRING_INLINE void EncodeSums(char* to, float* error, const DecodeTo& decoded, const Summands& of, size_t elements,
                               const Rounding& rounding) {
  alignas(64) float sum[kTogether * kQuantBlock];
  uint64_t word = rounding.first_word;
  for (size_t first = 0; first < elements; first += kTogether * kQuantBlock) {
    const size_t left = elements - first, count = left < kTogether * kQuantBlock ? left : kTogether * kQuantBlock;
    const size_t blocks = (count + kQuantBlock - 1) / kQuantBlock;
    uint32_t largest[kTogether];
    for (size_t i = 0; i < blocks; ++i) {
      largest[i] = SumBlock<Code>(sum + i * kQuantBlock, of, first / kQuantBlock + i);
    }
    EncodeBlocks<Code, kStochastic>(to, sum, blocks, largest, rounding, word);
    if (error != nullptr) FindErrors<Code>(error + first, sum, to, count);
    if (decoded.values != nullptr) Decode<Code>({decoded.values + first, decoded.stream}, to, count);
    to += blocks * Layout<Code>::kBytes, word += blocks * kQuantWords;
  }
}

template <class Code>
void EncodeSum(char* to, float* error, const DecodeTo& decoded, const EncodedRows& rows, uint64_t divisor,
               size_t elements, const Rounding& rounding) {
  const Summands of(rows, divisor);
  if (rounding.stochastic) {
    EncodeSums<Code, true>(to, error, decoded, of, elements, rounding);
  } else {
    EncodeSums<Code, false>(to, error, decoded, of, elements, rounding);
  }
}

template <class Code>
constexpr Quantizers MakeQuantizers() {
  return {Layout<Code>::kBytes, Encode<Code>, Decode<Code>, Sum<Code>, EncodeSum<Code>};
}

// In the order of QuantFormat.
constexpr QuantizerTable kQuantizers = {MakeQuantizers<IntCode<8>>(), MakeQuantizers<IntCode<4>>(),
                                        MakeQuantizers<F8E4M3Code>(), MakeQuantizers<BF16Code>()};

}  // namespace
}  // namespace jaxring::JAXRING_ISA
