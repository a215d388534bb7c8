#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace jaxring {
namespace {

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}();

using Function = uint32_t (*)(const void*, size_t, uint32_t);

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ByInstruction(const void* data, size_t bytes, uint32_t before) {
  const char* at = static_cast<const char*>(data);
  uint64_t crc = ~before;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  uint32_t rest = static_cast<uint32_t>(crc);
  for (; bytes > 0; --bytes, ++at) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(*at));
  return ~rest;
}
Function Choose() { return __builtin_cpu_supports("sse4.2") ? ByInstruction : Crc32cByTable; }
#elif defined(__aarch64__)
__attribute__((target("+crc"))) uint32_t ByInstruction(const void* data, size_t bytes, uint32_t before) {
  const char* at = static_cast<const char*>(data);
  uint32_t crc = ~before;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    crc = __crc32cd(crc, word);
  }
  for (; bytes > 0; --bytes, ++at) crc = __crc32cb(crc, static_cast<uint8_t>(*at));
  return ~crc;
}
Function Choose() { return getauxval(AT_HWCAP) & HWCAP_CRC32 ? ByInstruction : Crc32cByTable; }
#else
Function Choose() { return Crc32cByTable; }
#endif

}  // namespace

uint32_t Crc32cByTable(const void* data, size_t bytes, uint32_t before) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  uint32_t crc = ~before;
  for (size_t i = 0; i < bytes; ++i) crc = crc >> 8 ^ kTable[(crc ^ at[i]) & 255];
  return ~crc;
}

uint32_t Crc32c(const void* data, size_t bytes, uint32_t before) {
  static const Function function = Choose();
  return function(data, bytes, before);
}

}  // namespace jaxring
