// Converts chunks of kVectors vectors between memory and accumulators. Per instruction set: see vectors.h.
//
// Decode and Encode may permute the elements within the chunk, since operations are elementwise. LoadOrdered and
// StoreOrdered are for accumulators in memory and keep the order.
#pragma once

#include "reduce/formats.h"

namespace jaxring::JAXRING_ISA {
namespace {

constexpr int kVectors = 4;

template <class T>
using Chunk = Vector<T>[kVectors];

// For elements that need no conversion. kParts is 2 for complex numbers, where T is the type of a part.
template <class T, int kParts = 1>
struct Plain {
  using Lane = T;
  static constexpr bool kWidens = false;
  static constexpr size_t kElementBytes = sizeof(T) * kParts;
  static constexpr size_t kAccumulatorBytes = kElementBytes;
  static constexpr size_t kChunk = kVectors * kLanes<T> / kParts;

  JAXRING_INLINE static void Decode(Chunk<T>& chunk, const char* from) {
    for (int v = 0; v < kVectors; ++v) chunk[v] = LoadVector<T>(from + v * kVectorBytes);
  }

  JAXRING_INLINE static void Encode(char* to, const Chunk<T>& chunk, bool stream) {
    if (stream) {
      for (int v = 0; v < kVectors; ++v) StreamVector<T>(to + v * kVectorBytes, chunk[v]);
    } else {
      for (int v = 0; v < kVectors; ++v) StoreVector<T>(to + v * kVectorBytes, chunk[v]);
    }
  }

  JAXRING_INLINE static void LoadOrdered(Chunk<T>& chunk, const char* from) { Decode(chunk, from); }
  JAXRING_INLINE static void StoreOrdered(char* to, const Chunk<T>& chunk) { Encode(to, chunk, false); }
};

template <class Format>
struct Widened {
  using Lane = float;
  static constexpr bool kWidens = true;
  static constexpr int kPerWord = Format::kPerWord;
  static constexpr size_t kElementBytes = 4 / kPerWord;
  static constexpr size_t kAccumulatorBytes = 4;
  static constexpr size_t kChunk = kVectors * kLanes<float>;

  JAXRING_INLINE static void Decode(Chunk<float>& chunk, const char* from) {
    for (int v = 0; v < kVectors; v += kPerWord) {
      Bits words = LoadVector<uint32_t>(from + v / kPerWord * kVectorBytes);
      chunk[v] = Format::template Unpack<0>(words);
      chunk[v + 1] = Format::template Unpack<1>(words);
      if constexpr (kPerWord == 4) {
        chunk[v + 2] = Format::template Unpack<2>(words);
        chunk[v + 3] = Format::template Unpack<3>(words);
      }
    }
  }

  JAXRING_INLINE static void Encode(char* to, const Chunk<float>& chunk, bool stream) {
    for (int v = 0; v < kVectors; v += kPerWord) {
      Bits words = Format::template Pack<0>(chunk[v]) | Format::template Pack<1>(chunk[v + 1]);
      if constexpr (kPerWord == 4) {
        words |= Format::template Pack<2>(chunk[v + 2]) | Format::template Pack<3>(chunk[v + 3]);
      }
      char* place = to + v / kPerWord * kVectorBytes;
      if (stream) {
        StreamVector<uint32_t>(place, words);
      } else {
        StoreVector<uint32_t>(place, words);
      }
    }
  }

  JAXRING_INLINE static void LoadOrdered(Chunk<float>& chunk, const char* from) {
    Plain<float>::Decode(chunk, from);
    if constexpr (kPerWord == 4) {
      Separate<float>(chunk[0], chunk[1]);
      Separate<float>(chunk[2], chunk[3]);
      Separate<float>(chunk[0], chunk[2]);
      Separate<float>(chunk[1], chunk[3]);
    } else {
      for (int v = 0; v < kVectors; v += 2) Separate<float>(chunk[v], chunk[v + 1]);
    }
  }

  JAXRING_INLINE static void StoreOrdered(char* to, const Chunk<float>& chunk) {
    Chunk<float> ordered;
    for (int v = 0; v < kVectors; ++v) ordered[v] = chunk[v];
    if constexpr (kPerWord == 4) {
      Interleave<float>(ordered[1], ordered[3]);
      Interleave<float>(ordered[0], ordered[2]);
      Interleave<float>(ordered[2], ordered[3]);
      Interleave<float>(ordered[0], ordered[1]);
    } else {
      for (int v = 0; v < kVectors; v += 2) Interleave<float>(ordered[v], ordered[v + 1]);
    }
    Plain<float>::Encode(to, ordered, false);
  }
};

#if defined(__F16C__) || defined(__aarch64__)
#if defined(__aarch64__)
JAXRING_INLINE Vector<float> LoadHalves(const char* from) {
  uint64_t four;
  __builtin_memcpy(&four, from, sizeof four);
  return (Vector<float>)vcvt_f32_f16(vcreate_f16(four));
}

JAXRING_INLINE Bits ToHalves(Vector<float> low, Vector<float> high) {
  return (Bits)vcombine_f16(vcvt_f16_f32((float32x4_t)low), vcvt_f16_f32((float32x4_t)high));
}
#else
constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// Masks of all ones, because gcc 12 warns about the unmasked forms in its own headers.
JAXRING_INLINE Vector<float> LoadHalves(const char* from) {
#if JAXRING_VECTOR_BYTES == 64
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}

JAXRING_INLINE Bits ToHalves(Vector<float> low, Vector<float> high) {
#if JAXRING_VECTOR_BYTES == 64
  return (Bits)__builtin_shufflevector(_mm512_maskz_cvtps_ph(0xffff, low, kNearest),
                                       _mm512_maskz_cvtps_ph(0xffff, high, kNearest), 0, 1, 2, 3, 4, 5, 6, 7);
#else
  return (Bits)__builtin_shufflevector(_mm256_cvtps_ph(low, kNearest), _mm256_cvtps_ph(high, kNearest), 0, 1, 2, 3);
#endif
}
#endif

// The CPU's own conversions, which keep the order.
struct Hardware16 {
  using Lane = float;
  static constexpr bool kWidens = true;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kAccumulatorBytes = 4;
  static constexpr size_t kChunk = kVectors * kLanes<float>;

  JAXRING_INLINE static void Decode(Chunk<float>& chunk, const char* from) {
    for (int v = 0; v < kVectors; ++v) chunk[v] = LoadHalves(from + v * kVectorBytes / 2);
  }

  JAXRING_INLINE static void Encode(char* to, const Chunk<float>& chunk, bool stream) {
    for (int v = 0; v < kVectors; v += 2) {
      const Bits words = ToHalves(chunk[v], chunk[v + 1]);
      char* place = to + v / 2 * kVectorBytes;
      if (stream) {
        StreamVector<uint32_t>(place, words);
      } else {
        StoreVector<uint32_t>(place, words);
      }
    }
  }

  JAXRING_INLINE static void LoadOrdered(Chunk<float>& chunk, const char* from) { Plain<float>::Decode(chunk, from); }
  JAXRING_INLINE static void StoreOrdered(char* to, const Chunk<float>& chunk) {
    Plain<float>::Encode(to, chunk, false);
  }
};
using Half = Hardware16;
#else
using Half = Widened<Float16>;
#endif

}  // namespace
}  // namespace jaxring::JAXRING_ISA
