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

template <size_t kBytes>
struct IntsOf {
  typedef int32_t Type __attribute__((vector_size(kBytes)));
};

// In halves, since a scale waits for it.
template <size_t kBytes>
JAXRING_INLINE int32_t LargestLane(typename IntsOf<kBytes>::Type lanes) {
  using Ints = typename IntsOf<kBytes>::Type;
  if constexpr (kBytes > 16) {
    typename IntsOf<kBytes / 2>::Type low, high;
    __builtin_memcpy(&low, &lanes, kBytes / 2);
    __builtin_memcpy(&high, reinterpret_cast<const char*>(&lanes) + kBytes / 2, kBytes / 2);
    return LargestLane<kBytes / 2>(low > high ? low : high);
  } else {
    const Ints pairs = __builtin_shufflevector(lanes, lanes, 2, 3, 0, 1);
    lanes = pairs > lanes ? pairs : lanes;
    return lanes[0] > lanes[1] ? lanes[0] : lanes[1];
  }
}

// The larger one of `most` and the magnitude of `value`, as bits, in each lane.
JAXRING_INLINE Word Larger(Word most, Float value) {
  const Word magnitude = (Word)((Bits)value & ~kSignBit);
  return magnitude > most ? magnitude : most;
}

// The largest magnitude of a block, as bits: infinity's or more where one is not finite.
JAXRING_INLINE uint32_t LargestMagnitude(const float* from) {
  Word most = {};
  for (size_t i = 0; i < kQuantBlock; i += kFloatLanes) most = Larger(most, Load(from + i));
  return static_cast<uint32_t>(LargestLane<kVectorBytes>(most));
}

// Multiplies by the reciprocal of the scale, which takes a third of the time of divisions, or divides where there is
// none.
template <class Code, bool kStochastic, bool kDivide>
JAXRING_INLINE void EncodeCodes(char* to, const float* from, float scale, float limit, const uint32_t* random) {
  constexpr size_t kWords = Layout<Code>::kWords;
  const Float factor = Broadcast(kDivide ? scale : 1.0f / scale);
  for (size_t j = 0; j < kWords; j += kFloatLanes) {
    Bits word = {};
    for (int place = Layout<Code>::kPerWord - 1; place >= 0; --place) {
      const size_t element = place * kWords + j;
      Float value = Load(from + element);
      if constexpr (Code::kScaled) value = kDivide ? value / factor : value * factor;
      Bits bits = {};
      if constexpr (kStochastic) bits = LoadVector<uint32_t>(reinterpret_cast<const char*>(random + element));
      word = word << Code::kBits | Code::template Code<kStochastic>(value, bits, limit);
    }
    StoreVector<uint32_t>(to + 4 * j, word);
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
  if (scale >= kLeastForReciprocal) [[likely]] {
    EncodeCodes<Code, kStochastic, false>(to + sizeof stored, from, scale, limit, random);
  } else {
    EncodeCodes<Code, kStochastic, true>(to + sizeof stored, from, largest == 0 ? 1.0f : scale, limit, random);
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

// `largest`: the block's largest magnitude.
template <class Code, bool kStochastic>
JAXRING_INLINE void EncodeBlock(char* to, const float* from, uint32_t largest, const Rounding& rounding,
                                uint64_t word) {
  alignas(64) uint32_t random[kStochastic ? kQuantBlock : 1];
  if constexpr (kStochastic) RandomBits(random, rounding, word);
  if constexpr (!Code::kScaled) {
    EncodeCodes<Code, kStochastic, false>(to, from, 1.0f, 0.0f, random);
  } else {
    if (largest >= static_cast<uint32_t>(kInfinityBits)) {
      EncodeMarked<Code, kStochastic>(to, from, random);
    } else {
      EncodeScaled<Code, kStochastic>(to, from, largest, Code::kLimit, false, random);
    }
  }
}

template <class Code, bool kStream, int... kPlaces>
JAXRING_INLINE void DecodeCodes(float* to, const char* codes, float scale, std::integer_sequence<int, kPlaces...>) {
  constexpr size_t kWords = Layout<Code>::kWords;
  const Float factor = Broadcast(scale);
  for (size_t j = 0; j < kWords; j += kFloatLanes) {
    const Bits words = LoadVector<uint32_t>(codes + 4 * j);
    const auto use = [&](int place, Float value) {
      float* at = to + place * kWords + j;
      if constexpr (Code::kScaled) value = value * factor;
      if constexpr (kStream) {
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
  DecodeCodes<Code, false>(to, codes, scale, std::make_integer_sequence<int, Layout<Code>::kPerWord>());
  for (size_t i = 0; i < kQuantBlock; ++i) {
    const uint32_t code = ReadCode<Code>(codes, i);
    if (code == Code::kInfinity) to[i] = __builtin_inff();
    if (code == Code::kMinusInfinity) to[i] = -__builtin_inff();
    if (code == Code::kNan) to[i] = __builtin_nanf("");
  }
}

template <class Code, bool kStream>
JAXRING_INLINE void DecodeBlock(float* to, const char* from) {
  constexpr auto kPlaces = std::make_integer_sequence<int, Layout<Code>::kPerWord>();
  if constexpr (!Code::kScaled) {
    DecodeCodes<Code, kStream>(to, from, 1.0f, kPlaces);
  } else {
    uint32_t stored;
    __builtin_memcpy(&stored, from, sizeof stored);
    const char* codes = from + sizeof stored;
    if ((stored & kSignBit) == 0) {
      DecodeCodes<Code, kStream>(to, codes, FloatOf(stored), kPlaces);
      return;
    }
    DecodeMarked<Code>(to, codes, FloatOf(stored & ~kSignBit));
  }
}

// error[i] = values[i] - what its code decodes to, or 0 where that is not finite.
template <class Code>
JAXRING_INLINE void FindErrors(float* error, const float* values, const char* codes, size_t count) {
  for (size_t first = 0; first < count; first += kQuantBlock, codes += Layout<Code>::kBytes) {
    alignas(64) float decoded[kQuantBlock];
    DecodeBlock<Code, false>(decoded, codes);
    for (size_t i = first; i < first + kQuantBlock && i < count; ++i) {
      const float difference = values[i] - decoded[i - first];
      const bool finite = (BitsOf(difference) & ~kSignBit) < static_cast<uint32_t>(kInfinityBits);
      error[i] = finite ? difference : 0.0f;
    }
  }
}

// So many blocks are encoded side by side: what each code waits for, the largest magnitude and two divisions, takes
// longer than the rest of a block, and that of one block does not wait for that of another.
constexpr size_t kTogether = 8;

// Encodes kTogether blocks to nearest. False if one of them needs more than a product with a reciprocal for each code.
template <class Code>
JAXRING_INLINE bool EncodeTogether(char* to, const float* from, const uint32_t* largest) {
  float scales[kTogether];
  bool plain = true;
  for (size_t i = 0; i < kTogether; ++i) {
    scales[i] = ScaleFor(largest[i], Code::kLimit);
    plain = plain && largest[i] < static_cast<uint32_t>(kInfinityBits) && scales[i] >= kLeastForReciprocal;
  }
  if (!plain) return false;
  for (size_t i = 0; i < kTogether; ++i, to += Layout<Code>::kBytes, from += kQuantBlock) {
    __builtin_memcpy(to, &scales[i], sizeof scales[i]);
    EncodeCodes<Code, false, false>(to + sizeof scales[i], from, scales[i], Code::kLimit, nullptr);
  }
  return true;
}

// Encodes whole blocks, up to kTogether. `largest`: the largest magnitude of each, of formats that have a scale.
template <class Code, bool kStochastic>
JAXRING_INLINE void EncodeBlocks(char* to, const float* from, size_t blocks, const uint32_t* largest,
                                 const Rounding& rounding, uint64_t word) {
  if constexpr (Code::kScaled && !kStochastic) {
    if (blocks == kTogether && EncodeTogether<Code>(to, from, largest)) return;
  }
  for (size_t i = 0; i < blocks; ++i, to += Layout<Code>::kBytes, from += kQuantBlock, word += kQuantWords) {
    EncodeBlock<Code, kStochastic>(to, from, largest[i], rounding, word);
  }
}

template <class Code, bool kStochastic>
JAXRING_INLINE void EncodeAll(char* to, float* error, const float* from, size_t elements, const Rounding& rounding) {
  uint64_t word = rounding.first_word;
  while (elements > 0) {
    alignas(64) float padded[kQuantBlock];
    const float* values = from;
    size_t blocks = elements / kQuantBlock, count = blocks * kQuantBlock;
    if (blocks > kTogether) blocks = kTogether, count = kTogether * kQuantBlock;
    if (blocks == 0) {
      __builtin_memset(padded, 0, sizeof padded);
      __builtin_memcpy(padded, from, elements * sizeof(float));
      values = padded, blocks = 1, count = elements;
    }
    uint32_t largest[kTogether] = {};
    for (size_t i = 0; i < blocks && Code::kScaled; ++i) largest[i] = LargestMagnitude(values + i * kQuantBlock);
    EncodeBlocks<Code, kStochastic>(to, values, blocks, largest, rounding, word);
    if (error != nullptr) {
      FindErrors<Code>(error, values, to, count);
      error += count;
    }
    to += blocks * Layout<Code>::kBytes, from += count, elements -= count, word += blocks * kQuantWords;
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
void Decode(const DecodeTo& where, const char* from, size_t elements) {
  float* to = where.values;
  const bool stream = where.stream && reinterpret_cast<uintptr_t>(to) % 64 == 0;
  for (; elements >= kQuantBlock; elements -= kQuantBlock, to += kQuantBlock, from += Layout<Code>::kBytes) {
    if (stream) {
      DecodeBlock<Code, true>(to, from);
    } else {
      DecodeBlock<Code, false>(to, from);
    }
  }
  if (elements == 0) return;
  alignas(64) float last[kQuantBlock];
  DecodeBlock<Code, false>(last, from);
  __builtin_memcpy(to, last, elements * sizeof(float));
}

}  // namespace
}  // namespace jaxring::JAXRING_ISA
