// Sums that do not depend on the order of their terms: exact, and rounded once. Per instruction set: see vectors.h.
//
// Floats are added in pairs: a sum, and the sum of what its additions round away, which TwoSum computes exactly
// (D. E. Knuth, "The Art of Computer Programming", volume 2, 4.2.2). As long as nothing is rounded away from the second
// sum, the pair is the exact sum. If something is, pairs of doubles are tried for floats, and then integers, which also
// serve infinities and NaN. So the faster ways only decide how long it takes.
#pragma once

#include <type_traits>

#include "reduce/exact_rounding.h"
#include "reduce/fixed_point.h"

namespace jaxring::JAXRING_ISA {
namespace {

// The operation's name in FoldMany.
struct ExactSum {};

// A chunk of each source. The last chunk of a buffer is short, and is read by way of a padded copy.
template <class Codec, bool kShort>
struct ChunkOf {
  static constexpr size_t kBytes = Codec::kChunk * Codec::kElementBytes;
  const void* const* srcs;
  size_t count;
  size_t at, bytes;

  JAXRING_INLINE void Decode(Chunk<typename Codec::Lane>& chunk, size_t source) const {
    const char* from = static_cast<const char*>(srcs[source]) + at;
    if constexpr (kShort) {
      alignas(64) char padded[kBytes];
      __builtin_memcpy(padded, from, bytes);
      __builtin_memset(padded + bytes, 0, kBytes - bytes);
      Codec::Decode(chunk, padded);
    } else {
      Codec::Decode(chunk, from);
    }
  }
};

// How many of a chunk's vectors are added at a time, in registers: those that share words, or two.
constexpr int PartVectors(size_t element_bytes) { return element_bytes == 1 ? 4 : 2; }
template <class Codec>
constexpr int kPart = PartVectors(Codec::kElementBytes);

template <class Codec, int kFirst, class Source>
JAXRING_INLINE void LoadPart(Vector<typename Codec::Lane> (&terms)[kPart<Codec>], const Source& chunk_of, size_t s) {
  Chunk<typename Codec::Lane> chunk;
  chunk_of.Decode(chunk, s);
  for (int v = 0; v < kPart<Codec>; ++v) terms[v] = chunk[kFirst + v];
}

template <class Codec, int kFirst, class Source>
JAXRING_INLINE void LoadPart(Wide (&terms)[2 * kPart<Codec>], const Source& chunk_of, size_t s) {
  Float narrow[kPart<Codec>];
  LoadPart<Codec, kFirst>(narrow, chunk_of, s);
  for (int v = 0; v < kPart<Codec>; ++v) Widen(narrow[v], terms[2 * v], terms[2 * v + 1]);
}

// Adds a part of all sources. The sum is sums + rests, unless something was rounded away or is not finite: then it
// returns true.
template <class Codec, int kFirst, class T, int kCount, class Source>
JAXRING_INLINE bool AddInPairs(Vector<T> (&sums)[kCount], Vector<T> (&rests)[kCount], const Source& chunk_of) {
  using Bits = Vector<typename IntOf<T>::Type>;
  for (int v = 0; v < kCount; ++v) rests[v] = Vector<T>{};
  LoadPart<Codec, kFirst>(sums, chunk_of, 0);
  Bits lost = {};
  for (size_t s = 1; s < chunk_of.count; ++s) {
    Vector<T> terms[kCount];
    LoadPart<Codec, kFirst>(terms, chunk_of, s);
    for (int v = 0; v < kCount; ++v) {
      Vector<T> rest, rounded_away;
      sums[v] = TwoSum<T>(sums[v], terms[v], rest);
      rests[v] = TwoSum<T>(rests[v], rest, rounded_away);
      lost |= rounded_away != T(0);
    }
  }
  for (int v = 0; v < kCount; ++v) {
    const Vector<T> sum = sums[v] + rests[v];
    lost |= sum * T(0) != T(0);  // Zero times what is not finite is NaN.
  }
  return AnyLane((WideBits)lost);
}

// The same from integers: doubles as TakeDouble makes them.
template <class Codec, int kFirst, class Source>
[[gnu::noinline]] void AddAsIntegers(char* doubles, const Source& chunk_of) {
  using Lane = typename Codec::Lane;
  constexpr size_t kCount = kPart<Codec> * kLanes<Lane>;
  using Total = FixedPoint<std::conditional_t<sizeof(Lane) == 4, Float32Format, Float64Format>>;
  Total totals[kCount];
  for (size_t s = 0; s < chunk_of.count; ++s) {
    Vector<Lane> part[kPart<Codec>];
    LoadPart<Codec, kFirst>(part, chunk_of, s);
    typename Total::Bits values[kCount];
    __builtin_memcpy(values, part, sizeof values);
    for (size_t i = 0; i < kCount; ++i) totals[i].Add(values[i]);
    if ((s + 1) % Total::kMostTerms == 0) {
      for (Total& total : totals) total.Carry();
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    const uint64_t bits = TakeDouble(totals[i]);
    __builtin_memcpy(doubles + 8 * i, &bits, 8);
  }
}

// Doubles that are sums of floats, rounded to odd, divided and rounded to the codec's floats: to odd if those are
// rounded once more when they are stored.
template <class Codec>
JAXRING_INLINE Float Finish(Wide low, Wide high, uint64_t divisor) {
  low = DivideToOdd(low, divisor);
  high = DivideToOdd(high, divisor);
  if constexpr (Codec::kWidens) {
    return NarrowToOdd(low, high);
  } else {
    return Narrow(low, high);
  }
}

// A part of floats that the first way could not add.
template <class Codec, int kFirst, class Source>
[[gnu::noinline]] void SumFloatsSlowly(Float (&result)[kPart<Codec>], const Source& chunk_of, uint64_t divisor) {
  Wide sums[2 * kPart<Codec>], rests[2 * kPart<Codec>];
  if (AddInPairs<Codec, kFirst, double>(sums, rests, chunk_of)) {
    AddAsIntegers<Codec, kFirst>(reinterpret_cast<char*>(sums), chunk_of);
  } else {
    for (int w = 0; w < 2 * kPart<Codec>; ++w) sums[w] = PairToOdd<double>(sums[w], rests[w]);
  }
  for (int v = 0; v < kPart<Codec>; ++v) result[v] = Finish<Codec>(sums[2 * v], sums[2 * v + 1], divisor);
}

template <class Codec, int kFirst, class Source>
JAXRING_INLINE void SumPart(Chunk<float>& result, const Source& chunk_of, uint64_t divisor) {
  Float sums[kPart<Codec>], rests[kPart<Codec>];
  const bool lost = AddInPairs<Codec, kFirst, float>(sums, rests, chunk_of);
  for (int v = 0; v < kPart<Codec>; ++v) {
    Float& to = result[kFirst + v];
    if (divisor != 0) {
      Wide low, high, low_rest, high_rest;
      Widen(sums[v], low, high);
      Widen(rests[v], low_rest, high_rest);
      to = Finish<Codec>(PairToOdd<double>(low, low_rest), PairToOdd<double>(high, high_rest), divisor);
    } else if constexpr (Codec::kWidens) {
      to = PairToOdd<float>(sums[v], rests[v]);
    } else {
      to = PairToNearest<float>(sums[v], rests[v]);
    }
  }
  if (lost) [[unlikely]] {
    // An array of its own, so that the sums stay in registers otherwise.
    Float again[kPart<Codec>];
    SumFloatsSlowly<Codec, kFirst>(again, chunk_of, divisor);
    for (int v = 0; v < kPart<Codec>; ++v) result[kFirst + v] = again[v];
  }
}

template <class Codec, int kFirst, class Source>
JAXRING_INLINE void SumPart(Chunk<double>& result, const Source& chunk_of, uint64_t divisor) {
  Wide sums[kPart<Codec>], rests[kPart<Codec>];
  const bool lost = AddInPairs<Codec, kFirst, double>(sums, rests, chunk_of);
  for (int v = 0; v < kPart<Codec>; ++v) result[kFirst + v] = PairToNearest<double>(sums[v], rests[v]);
  if (lost) [[unlikely]] {
    Wide again[kPart<Codec>];
    AddAsIntegers<Codec, kFirst>(reinterpret_cast<char*>(again), chunk_of);
    for (int v = 0; v < kPart<Codec>; ++v) result[kFirst + v] = again[v];
  }
  if (divisor == 0) return;
  for (int v = 0; v < kPart<Codec>; ++v) result[kFirst + v] /= Broadcast<double>(static_cast<double>(divisor));
}

template <class Codec, class Source>
JAXRING_INLINE void SumChunk(Chunk<typename Codec::Lane>& result, const Source& chunk_of, uint64_t divisor) {
  SumPart<Codec, 0>(result, chunk_of, divisor);
  if constexpr (kPart<Codec> < kVectors) SumPart<Codec, kPart<Codec>>(result, chunk_of, divisor);
}

// Elements [first, first + n) of the exact sums of all sources, to out.
template <class Codec>
[[gnu::noinline]] void SumExactly(char* out, const void* const* srcs, size_t count, size_t first, size_t n,
                                  uint64_t divisor, bool stream) {
  using Lane = typename Codec::Lane;
  constexpr size_t kElement = Codec::kElementBytes, kBytes = Codec::kChunk * kElement;
  size_t i = 0;
  Chunk<Lane> result;
  for (; i + Codec::kChunk <= n; i += Codec::kChunk) {
    SumChunk<Codec>(result, ChunkOf<Codec, false>{srcs, count, (first + i) * kElement, kBytes}, divisor);
    Codec::Encode(out + i * kElement, result, stream);
  }
  if (i == n) return;
  const size_t bytes = (n - i) * kElement;
  SumChunk<Codec>(result, ChunkOf<Codec, true>{srcs, count, (first + i) * kElement, bytes}, divisor);
  alignas(64) char padded[kBytes];
  Codec::Encode(padded, result, false);
  __builtin_memcpy(out + i * kElement, padded, bytes);
}

}  // namespace
}  // namespace jaxring::JAXRING_ISA
