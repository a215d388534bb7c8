#include "reduce/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "reduce/kernels.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace jaxring {
namespace {

constexpr size_t kLine = 64;
// The bytes that are copied to all destinations in turn, few enough to stay in the L1 cache meanwhile.
constexpr size_t kBlock = 8192;

#if defined(__x86_64__)
void StreamBlock(char* dst, const char* src, size_t bytes) {
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(dst) % kLine);
  std::memcpy(dst, src, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const __m128i* from = reinterpret_cast<const __m128i*>(src + at);
    __m128i* to = reinterpret_cast<__m128i*>(dst + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(dst + at, src + at, bytes - at);
}
#endif

}  // namespace

void CopyBlock(void* dst, const void* src, size_t bytes, bool stream) {
  if (dst == src || bytes == 0) return;
#if defined(__x86_64__)
  if (stream) return StreamBlock(static_cast<char*>(dst), static_cast<const char*>(src), bytes);
#else
  (void)stream;
#endif
  std::memcpy(dst, src, bytes);
}

void CopyMany(void* const* dsts, size_t dst_count, const void* src, size_t bytes, bool stream) {
  if (dst_count == 1) return CopyBlock(dsts[0], src, bytes, stream);
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t size = std::min(kBlock, bytes - at);
    for (size_t k = 0; k < dst_count; ++k) {
      CopyBlock(static_cast<char*>(dsts[k]) + at, static_cast<const char*>(src) + at, size, stream);
    }
  }
}

void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace jaxring
