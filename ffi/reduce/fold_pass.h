// One pass over several sources, in registers. Per instruction set: see vectors.h.
#pragma once

#include "reduce/codecs.h"

namespace jaxring::JAXRING_ISA {
namespace {

constexpr size_t kMaxSources = 8;

// out[i] = ((acc[i] op srcs[0][i]) op srcs[1][i]) ...; without acc, the first source takes its place.
struct Pass {
  char* out;
  const char* acc;  // accumulator elements in order, or nullptr
  const char* srcs[kMaxSources];
  size_t count;  // of sources, at most kMaxSources
  size_t n;
  uint64_t divisor;
  bool to_accumulators;  // out takes accumulator elements, not the dtype's
  bool stream;           // out is aligned to the vector; not with to_accumulators
};

template <class Codec>
JAXRING_INLINE void Divide(Chunk<typename Codec::Lane>& chunk, uint64_t divisor) {
  using Lane = typename Codec::Lane;
  if constexpr (Lane(0.5) != Lane(0)) {
    if (divisor == 0) return;
    for (int v = 0; v < kVectors; ++v) chunk[v] /= Broadcast<Lane>(static_cast<Lane>(divisor));
  }
}

// Decodes, and prefetches later elements of the same source. Measured: narrow elements from memory gain a tenth or
// more, the others nothing.
template <class Codec>
JAXRING_INLINE void Fetch(Chunk<typename Codec::Lane>& chunk, const char* from) {
  constexpr size_t kAhead = 512;
  if constexpr (Codec::kWidens) {
    for (size_t line = 0; line < Codec::kChunk * Codec::kElementBytes; line += 64) {
      __builtin_prefetch(from + kAhead + line);
    }
  }
  Codec::Decode(chunk, from);
}

// Processes the whole chunks and returns the number of their elements.
template <class Codec, class Op>
[[gnu::noinline]] size_t RunChunks(const Pass& pass) {
  using Lane = typename Codec::Lane;
  const char* srcs[kMaxSources];  // a copy, so that no store can change it
  for (size_t s = 0; s < kMaxSources; ++s) srcs[s] = pass.srcs[s];
  const char* const acc = pass.acc;
  char* const out = pass.out;
  const size_t count = pass.count;
  const uint64_t divisor = pass.divisor;
  const bool stream = pass.stream;
  const bool ordered = Codec::kWidens && pass.to_accumulators;
  size_t i = 0;
  for (; i + Codec::kChunk <= pass.n; i += Codec::kChunk) {
    const size_t at = i * Codec::kElementBytes;
    Chunk<Lane> chunk;
    size_t s = 0;
    if (acc) {
      Codec::LoadOrdered(chunk, acc + i * Codec::kAccumulatorBytes);
    } else {
      Fetch<Codec>(chunk, srcs[0] + at);
      s = 1;
    }
    for (; s < count; ++s) {
      Chunk<Lane> next;
      Fetch<Codec>(next, srcs[s] + at);
      for (int v = 0; v < kVectors; ++v) chunk[v] = Op::template Apply<Lane>(chunk[v], next[v]);
    }
    Divide<Codec>(chunk, divisor);
    if (ordered) {
      Codec::StoreOrdered(out + i * Codec::kAccumulatorBytes, chunk);
    } else {
      Codec::Encode(out + at, chunk, stream);
    }
  }
  return i;
}

// Processes the whole chunks, then the rest by the same code as one chunk in padded copies.
template <class Codec, class Op>
[[gnu::noinline]] void Run(const Pass& pass) {
  constexpr size_t kBytes = Codec::kChunk * Codec::kElementBytes;
  constexpr size_t kWideBytes = Codec::kChunk * Codec::kAccumulatorBytes;
  const size_t done = RunChunks<Codec, Op>(pass);
  const size_t rest = pass.n - done;
  if (rest == 0) return;
  const size_t bytes = rest * Codec::kElementBytes;
  const size_t wide_bytes = rest * Codec::kAccumulatorBytes;
  alignas(64) char padded[kMaxSources][kBytes];
  alignas(64) char padded_acc[kWideBytes];
  alignas(64) char padded_out[kWideBytes];
  Pass last = pass;
  for (size_t s = 0; s < pass.count; ++s) {
    __builtin_memcpy(padded[s], pass.srcs[s] + done * Codec::kElementBytes, bytes);
    __builtin_memset(padded[s] + bytes, 0, kBytes - bytes);
    last.srcs[s] = padded[s];
  }
  if (pass.acc) {
    __builtin_memcpy(padded_acc, pass.acc + done * Codec::kAccumulatorBytes, wide_bytes);
    __builtin_memset(padded_acc + wide_bytes, 0, kWideBytes - wide_bytes);
    last.acc = padded_acc;
  }
  last.out = padded_out;
  last.n = Codec::kChunk;
  last.stream = false;
  RunChunks<Codec, Op>(last);
  if (pass.to_accumulators) {
    __builtin_memcpy(pass.out + done * Codec::kAccumulatorBytes, padded_out, wide_bytes);
  } else {
    __builtin_memcpy(pass.out + done * Codec::kElementBytes, padded_out, bytes);
  }
}

}  // namespace
}  // namespace jaxring::JAXRING_ISA
