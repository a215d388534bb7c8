// One instruction set's quantizers: blocks of codes with their scales. Per instruction set: see reduce/vectors.h.
#pragma once

#include "quantize/codes.h"
#include "quantize/quantizers.h"
#include "quantize/random.h"

namespace jaxring::JAXRING_ISA {
namespace {

constexpr size_t kFloatLanes = kLanes<float>;

template <class Code>
struct Layout {
  static constexpr int kPerWord = 32 / Code::kBits;
  static constexpr size_t kWords = kQuantBlock / kPerWord;
  static constexpr size_t kScaleBytes = Code::kScaled ? sizeof(float) : 0;
  static constexpr size_t kBytes = kScaleBytes + 4 * kWords;
};

JAXRING_INLINE uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

JAXRING_INLINE float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// What a code of 1 stands for where the largest magnitude, that of `bits`, becomes `limit`. It has 16 significant bits
// at most, so that every product with a code is exact, and a fused multiply-add gives the same sum. It is rounded up,
// so that no code exceeds the limit, but for the largest numbers down, so that every product is finite.
JAXRING_INLINE float ScaleFor(uint32_t bits, float limit) {
  uint32_t scale = BitsOf(FloatOf(bits) / limit);
  if (bits >= 0x7f000000u) return FloatOf((scale & ~0xffu) - 0x100u);
  if (scale >= 0x00010000u) return FloatOf((scale + 0xffu) & ~0xffu);
  return FloatOf(scale + (bits != 0));  // a small multiple of the least subnormal number
}

JAXRING_INLINE Float Load(const float* from) { return LoadVector<float>(reinterpret_cast<const char*>(from)); }

// From here on the reciprocal of a scale is a normal number.
constexpr float kLeastForReciprocal = 0x1p-100f;

// The largest magnitude of a block, as bits: infinity's or more where one is not finite.
JAXRING_INLINE uint32_t LargestMagnitude(const float* from) {
  Word most = {};
  for (size_t i = 0; i < kQuantBlock; i += kFloatLanes) {
    const Word magnitude = (Word)((Bits)Load(from + i) & ~kSignBit);
    most = magnitude > most ? magnitude : most;
  }
  int32_t largest = 0;
  for (size_t i = 0; i < kFloatLanes; ++i) largest = most[i] > largest ? most[i] : largest;
  return static_cast<uint32_t>(largest);
}

// Multiplies by the reciprocal of the scale, which takes a third of the time of divisions, or divides where there is
// none.
template <class Code, bool kStochastic, bool kDivide, int... kPlaces>
JAXRING_INLINE void EncodeCodes(char* to, const float* from, float scale, float limit, const uint32_t* random,
                                std::integer_sequence<int, kPlaces...>) {
  constexpr size_t kWords = Layout<Code>::kWords;
  const Float factor = Broadcast(kDivide ? scale : 1.0f / scale);
  for (size_t j = 0; j < kWords; j += kFloatLanes) {
    const auto code = [&](int place) {
      const size_t element = place * kWords + j;
      Float value = Load(from + element);
      if constexpr (Code::kScaled) value = kDivide ? value / factor : value * factor;
      Bits bits = {};
      if constexpr (kStochastic) bits = LoadVector<uint32_t>(reinterpret_cast<const char*>(random + element));
      return Code::template Code<kStochastic>(value, bits, limit);
    };
    StoreVector<uint32_t>(to + 4 * j, ((code(kPlaces) << (Code::kBits * kPlaces)) | ...));
  }
}

template <class Code>
JAXRING_INLINE uint32_t ReadCode(const char* codes, size_t element) {
  uint32_t word;
  __builtin_memcpy(&word, codes + 4 * (element % Layout<Code>::kWords), sizeof word);
  return word >> (Code::kBits * (element / Layout<Code>::kWords)) & ((1u << Code::kBits) - 1);
}

template <class Code>
JAXRING_INLINE void WriteCode(char* codes, size_t element, uint32_t code) {
  char* at = codes + 4 * (element % Layout<Code>::kWords);
  const int shift = static_cast<int>(Code::kBits * (element / Layout<Code>::kWords));
  uint32_t word;
  __builtin_memcpy(&word, at, sizeof word);
  word = (word & ~(((1u << Code::kBits) - 1) << shift)) | code << shift;
  __builtin_memcpy(at, &word, sizeof word);
}

template <class Code, bool kStochastic>
JAXRING_INLINE void EncodeScaled(char* to, const float* from, uint32_t largest, float limit, bool marked,
                                 const uint32_t* random) {
  const float scale = ScaleFor(largest, limit);
  const uint32_t stored = BitsOf(scale) | (marked ? kSignBit : 0);
  __builtin_memcpy(to, &stored, sizeof stored);
  constexpr auto kPlaces = std::make_integer_sequence<int, Layout<Code>::kPerWord>();
  if (scale >= kLeastForReciprocal) [[likely]] {
    EncodeCodes<Code, kStochastic, false>(to + sizeof stored, from, scale, limit, random, kPlaces);
  } else {
    EncodeCodes<Code, kStochastic, true>(to + sizeof stored, from, largest == 0 ? 1.0f : scale, limit, random, kPlaces);
  }
}

// A block with NaN or infinity: the scale, of the finite values, has its sign set, and codes beyond the limit say what
// the others are.
template <class Code, bool kStochastic>
[[gnu::noinline]] void EncodeMarked(char* to, const float* from, const uint32_t* random) {
  alignas(64) float finite[kQuantBlock];
  for (size_t i = 0; i < kQuantBlock; ++i) {
    finite[i] = (BitsOf(from[i]) & ~kSignBit) < static_cast<uint32_t>(kInfinityBits) ? from[i] : 0.0f;
  }
  EncodeScaled<Code, kStochastic>(to, finite, LargestMagnitude(finite), Code::kMarkedLimit, true, random);
  for (size_t i = 0; i < kQuantBlock; ++i) {
    const uint32_t magnitude = BitsOf(from[i]) & ~kSignBit;
    if (magnitude < static_cast<uint32_t>(kInfinityBits)) continue;
    const uint32_t infinity = BitsOf(from[i]) & kSignBit ? Code::kMinusInfinity : Code::kInfinity;
    WriteCode<Code>(to + sizeof(float), i, magnitude > static_cast<uint32_t>(kInfinityBits) ? Code::kNan : infinity);
  }
}

template <class Code, bool kStochastic>
JAXRING_INLINE void EncodeBlock(char* to, const float* from, const Rounding& rounding, uint64_t word) {
  alignas(64) uint32_t random[kStochastic ? kQuantBlock : 1];
  if constexpr (kStochastic) RandomBits(random, rounding, word);
  if constexpr (!Code::kScaled) {
    EncodeCodes<Code, kStochastic, false>(to, from, 1.0f, 0.0f, random,
                                          std::make_integer_sequence<int, Layout<Code>::kPerWord>());
  } else {
    const uint32_t largest = LargestMagnitude(from);
    if (largest >= static_cast<uint32_t>(kInfinityBits)) {
      EncodeMarked<Code, kStochastic>(to, from, random);
    } else {
      EncodeScaled<Code, kStochastic>(to, from, largest, Code::kLimit, false, random);
    }
  }
}

// What a decoded vector is for: stored, stored past the caches, or added to a sum.
enum class Use { kStore, kStream, kAdd };

template <class Code, Use kUse, int... kPlaces>
JAXRING_INLINE void DecodeCodes(float* to, const char* codes, float scale, std::integer_sequence<int, kPlaces...>) {
  constexpr size_t kWords = Layout<Code>::kWords;
  const Float factor = Broadcast(scale);
  for (size_t j = 0; j < kWords; j += kFloatLanes) {
    const Bits words = LoadVector<uint32_t>(codes + 4 * j);
    const auto use = [&](int place, Float value) {
      float* at = to + place * kWords + j;
      if constexpr (Code::kScaled) value = value * factor;
      if constexpr (kUse == Use::kAdd) value = Load(at) + value;
      if constexpr (kUse == Use::kStream) {
        StreamVector<float>(reinterpret_cast<char*>(at), value);
      } else {
        StoreVector<float>(reinterpret_cast<char*>(at), value);
      }
    };
    (use(kPlaces, Code::template Value<kPlaces>(words)), ...);
  }
}

template <class Code>
[[gnu::noinline]] void DecodeMarked(float* to, const char* codes, float scale) {
  DecodeCodes<Code, Use::kStore>(to, codes, scale, std::make_integer_sequence<int, Layout<Code>::kPerWord>());
  for (size_t i = 0; i < kQuantBlock; ++i) {
    const uint32_t code = ReadCode<Code>(codes, i);
    if (code == Code::kInfinity) to[i] = __builtin_inff();
    if (code == Code::kMinusInfinity) to[i] = -__builtin_inff();
    if (code == Code::kNan) to[i] = __builtin_nanf("");
  }
}

template <class Code, Use kUse>
JAXRING_INLINE void DecodeBlock(float* to, const char* from) {
  constexpr auto kPlaces = std::make_integer_sequence<int, Layout<Code>::kPerWord>();
  if constexpr (!Code::kScaled) {
    DecodeCodes<Code, kUse>(to, from, 1.0f, kPlaces);
  } else {
    uint32_t stored;
    __builtin_memcpy(&stored, from, sizeof stored);
    const char* codes = from + sizeof stored;
    if ((stored & kSignBit) == 0) {
      DecodeCodes<Code, kUse>(to, codes, FloatOf(stored), kPlaces);
      return;
    }
    alignas(64) float block[kQuantBlock];
    DecodeMarked<Code>(block, codes, FloatOf(stored & ~kSignBit));
    for (size_t i = 0; i < kQuantBlock; ++i) to[i] = kUse == Use::kAdd ? to[i] + block[i] : block[i];
  }
}

template <class Code, bool kStochastic>
JAXRING_INLINE void EncodeAll(char* to, float* error, const float* from, size_t elements, const Rounding& rounding) {
  uint64_t word = rounding.first_word;
  for (size_t i = 0; i < elements; i += kQuantBlock, to += Layout<Code>::kBytes, word += kQuantWords) {
    const size_t count = elements - i < kQuantBlock ? elements - i : kQuantBlock;
    alignas(64) float padded[kQuantBlock];
    const float* block = from + i;
    if (count < kQuantBlock) {
      __builtin_memset(padded, 0, sizeof padded);
      __builtin_memcpy(padded, block, count * sizeof(float));
      block = padded;
    }
    EncodeBlock<Code, kStochastic>(to, block, rounding, word);
    if (error == nullptr) continue;
    alignas(64) float decoded[kQuantBlock];
    DecodeBlock<Code, Use::kStore>(decoded, to);
    for (size_t k = 0; k < count; ++k) {
      const float difference = block[k] - decoded[k];
      const bool finite = (BitsOf(difference) & ~kSignBit) < static_cast<uint32_t>(kInfinityBits);
      error[i + k] = finite ? difference : 0.0f;
    }
  }
}

template <class Code>
void Encode(char* to, float* error, const float* from, size_t elements, const Rounding& rounding) {
  if (rounding.stochastic) {
    EncodeAll<Code, true>(to, error, from, elements, rounding);
  } else {
    EncodeAll<Code, false>(to, error, from, elements, rounding);
  }
}

template <class Code>
void Decode(float* to, const char* from, size_t elements, bool stream) {
  const bool aligned = reinterpret_cast<uintptr_t>(to) % 64 == 0;
  for (; elements >= kQuantBlock; elements -= kQuantBlock, to += kQuantBlock, from += Layout<Code>::kBytes) {
    if (stream && aligned) {
      DecodeBlock<Code, Use::kStream>(to, from);
    } else {
      DecodeBlock<Code, Use::kStore>(to, from);
    }
  }
  if (elements == 0) return;
  alignas(64) float last[kQuantBlock];
  DecodeBlock<Code, Use::kStore>(last, from);
  __builtin_memcpy(to, last, elements * sizeof(float));
}

template <class Code>
void SumBlock(float* sum, const char* from, size_t stride, size_t rows, uint64_t divisor, const OwnRow& own,
              const float* values) {
  for (size_t row = 0; row < rows; ++row) {
    // The own row may have no place among the codes, not even an address behind the last one.
    const auto codes = [&] { return from + own.place(row) * stride; };
    if (row == own.row && row == 0) {
      __builtin_memcpy(sum, values, kQuantBlock * sizeof(float));
    } else if (row == own.row) {
      for (size_t i = 0; i < kQuantBlock; i += kFloatLanes) {
        StoreVector<float>(reinterpret_cast<char*>(sum + i), Load(sum + i) + Load(values + i));
      }
    } else if (row == 0) {
      DecodeBlock<Code, Use::kStore>(sum, codes());
    } else {
      DecodeBlock<Code, Use::kAdd>(sum, codes());
    }
  }
  if (divisor == 0) return;
  const Float factor = Broadcast(1.0f / static_cast<float>(divisor));
  for (size_t i = 0; i < kQuantBlock; i += kFloatLanes) {
    StoreVector<float>(reinterpret_cast<char*>(sum + i), Load(sum + i) * factor);
  }
}

template <class Code>
constexpr Quantizers MakeQuantizers() {
  return {Layout<Code>::kBytes, Encode<Code>, Decode<Code>, SumBlock<Code>};
}

// In the order of QuantFormat.
constexpr QuantizerTable kQuantizers = {MakeQuantizers<IntCode<8>>(), MakeQuantizers<IntCode<4>>(),
                                        MakeQuantizers<F8E4M3Code>(), MakeQuantizers<BF16Code>()};

}  // namespace
}  // namespace jaxring::JAXRING_ISA
