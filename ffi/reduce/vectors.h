// Vectors of one instruction set's width, written with the compiler's vector extensions.
//
// This header and the others marked "per instruction set" are compiled once for each instruction set. Everything in
// them is in an unnamed namespace, and none of them calls an inline function of the standard library, so that the
// linker never gives one instruction set's code to another. They are compiled with -ffp-contract=off, so that every
// instruction set gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if !defined(JAXRING_ISA) || !defined(JAXRING_VECTOR_BYTES)
#error "define JAXRING_ISA and JAXRING_VECTOR_BYTES before including this header"
#endif

#define JAXRING_INLINE [[gnu::always_inline]] inline

namespace jaxring::JAXRING_ISA {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "shifts select packed elements by their position in a little-endian word");

constexpr size_t kVectorBytes = JAXRING_VECTOR_BYTES;

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(JAXRING_VECTOR_BYTES)));
  struct __attribute__((packed, may_alias)) Unaligned {
    Type value;
  };
};

template <class T>
using Vector = typename VectorOf<T>::Type;

template <class T>
constexpr size_t kLanes = kVectorBytes / sizeof(T);

template <class T>
struct IntOf {
  using Type = T;
};
template <>
struct IntOf<float> {
  using Type = int32_t;
};
template <>
struct IntOf<double> {
  using Type = int64_t;
};

template <class T>
JAXRING_INLINE Vector<T> Broadcast(T value) {
  return value - Vector<T>{};  // the sum of -0.0 and zero would be 0.0
}

template <class T>
JAXRING_INLINE Vector<T> LoadVector(const char* from) {
  return reinterpret_cast<const typename VectorOf<T>::Unaligned*>(from)->value;
}

template <class T>
JAXRING_INLINE void StoreVector(char* to, Vector<T> value) {
  reinterpret_cast<typename VectorOf<T>::Unaligned*>(to)->value = value;
}

// A non-temporal store; `to` must be aligned to the vector.
template <class T>
JAXRING_INLINE void StreamVector(char* to, Vector<T> value) {
#if !defined(__x86_64__)
  StoreVector<T>(to, value);
#elif JAXRING_VECTOR_BYTES == 16
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value);
#elif JAXRING_VECTOR_BYTES == 32
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#else
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#endif
}

template <class T, size_t... kLane>
JAXRING_INLINE void InterleaveLanes(Vector<T>& a, Vector<T>& b, std::index_sequence<kLane...>) {
  constexpr size_t kCount = sizeof...(kLane);
  Vector<T> low = __builtin_shufflevector(a, b, ((kLane % 2) * kCount + kLane / 2)...);
  Vector<T> high = __builtin_shufflevector(a, b, ((kLane % 2) * kCount + (kLane + kCount) / 2)...);
  a = low;
  b = high;
}

template <class T, size_t... kLane>
JAXRING_INLINE void SeparateLanes(Vector<T>& a, Vector<T>& b, std::index_sequence<kLane...>) {
  Vector<T> even = __builtin_shufflevector(a, b, (2 * kLane)...);
  Vector<T> odd = __builtin_shufflevector(a, b, (2 * kLane + 1)...);
  a = even;
  b = odd;
}

// (a, b) becomes a0 b0 a1 b1 ...
template <class T>
JAXRING_INLINE void Interleave(Vector<T>& a, Vector<T>& b) {
  InterleaveLanes<T>(a, b, std::make_index_sequence<kLanes<T>>());
}

// The inverse: a becomes the elements of (a, b) at even positions, b those at odd ones.
template <class T>
JAXRING_INLINE void Separate(Vector<T>& a, Vector<T>& b) {
  SeparateLanes<T>(a, b, std::make_index_sequence<kLanes<T>>());
}

}  // namespace
}  // namespace jaxring::JAXRING_ISA
