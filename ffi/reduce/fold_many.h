// The functions of a table, implemented by passes. Per instruction set: see vectors.h.
#pragma once

#include <type_traits>

#include "reduce/copy.h"
#include "reduce/exact_sum.h"
#include "reduce/fold_pass.h"
#include "reduce/kernels.h"
#include "reduce/operations.h"

namespace jaxring::JAXRING_ISA {
namespace {

// Bytes of accumulators kept between passes, few enough to stay in the L1 cache.
constexpr size_t kBlockBytes = 8192;

JAXRING_INLINE size_t Lesser(size_t a, size_t b) { return a < b ? a : b; }

// Each instantiation of these is for one Codec, and its Op plays no part in Load and Store.
template <class Codec>
void Load(void* acc, const void* src, size_t n) {
  Run<Codec, Sum>({static_cast<char*>(acc), nullptr, {static_cast<const char*>(src)}, 1, n, 0, true, false});
}

template <class Codec>
void Store(void* dst, const void* acc, size_t n, uint64_t divisor) {
  Run<Codec, Sum>({static_cast<char*>(dst), static_cast<const char*>(acc), {}, 0, n, divisor, false, false});
}

template <class Codec, class Op>
void Fold(void* acc, const void* src, size_t n) {
  char* out = static_cast<char*>(acc);
  Run<Codec, Op>({out, out, {static_cast<const char*>(src)}, 1, n, 0, true, false});
}

// The sources from element `first` on.
template <class Codec>
JAXRING_INLINE void TakeSources(Pass& pass, const void* const* sources, size_t count, size_t first) {
  pass.count = count;
  for (size_t s = 0; s < count; ++s) {
    pass.srcs[s] = static_cast<const char*>(sources[s]) + first * Codec::kElementBytes;
  }
}

// Elements [first, first + n) of the fold of all the sources, to out. More than kMaxSources of them take several passes
// over blocks of accumulators; n must then fit in such a block.
template <class Codec, class Op>
[[gnu::noinline]] void FoldRange(char* out, const void* const* srcs, size_t src_count, size_t first, size_t n,
                                 uint64_t divisor, bool stream) {
  if constexpr (std::is_same_v<Op, ExactSum>) {
    SumExactly<Codec>(out, srcs, src_count, first, n, divisor, stream);
  } else {
    alignas(64) char block[kBlockBytes];
    Pass pass = {block, nullptr, {}, 0, n, 0, true, false};
    size_t done = 0;
    for (; src_count - done > kMaxSources; done += kMaxSources) {
      TakeSources<Codec>(pass, srcs + done, kMaxSources, first);
      Run<Codec, Op>(pass);
      pass.acc = block;
    }
    TakeSources<Codec>(pass, srcs + done, src_count - done, first);
    pass.out = out;
    pass.divisor = divisor;
    pass.to_accumulators = false;
    pass.stream = stream;
    Run<Codec, Op>(pass);
  }
}

// The number of elements before the first that is aligned for streaming; n if none is.
template <class Codec>
JAXRING_INLINE size_t UnalignedHead(const void* dst, size_t n) {
  const size_t bytes = -reinterpret_cast<uintptr_t>(dst) % 64;
  return bytes % Codec::kElementBytes ? n : Lesser(n, bytes / Codec::kElementBytes);
}

template <class Codec, class Op>
void FoldMany(void* const* dsts, size_t dst_count, const void* const* srcs, size_t src_count, size_t n,
              uint64_t divisor, bool stream) {
  if (dst_count == 0 || src_count == 0 || n == 0) return;
  constexpr size_t kBlock = kBlockBytes / Codec::kAccumulatorBytes;
  constexpr size_t kBytes = Codec::kElementBytes;
  if (dst_count > 1) {
    alignas(64) char block[kBlockBytes];
    for (size_t i = 0; i < n; i += kBlock) {
      const size_t size = Lesser(kBlock, n - i);
      FoldRange<Codec, Op>(block, srcs, src_count, i, size, divisor, false);
      for (size_t k = 0; k < dst_count; ++k) {
        CopyBlock(static_cast<char*>(dsts[k]) + i * kBytes, block, size * kBytes, stream);
      }
    }
    return;
  }
  char* dst = static_cast<char*>(dsts[0]);
  const size_t most = src_count > kMaxSources ? kBlock : n;
  const size_t head = stream ? UnalignedHead<Codec>(dst, n) : n;
  for (size_t i = 0; i < n;) {
    const bool in_head = i < head;
    const size_t size = Lesser(most, (in_head ? head : n) - i);
    FoldRange<Codec, Op>(dst + i * kBytes, srcs, src_count, i, size, divisor, !in_head);
    i += size;
  }
}

}  // namespace
}  // namespace jaxring::JAXRING_ISA
