// CRC-32C (Castagnoli's polynomial, RFC 3720): protects headers on a wire, and payloads if the user asks for it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxring {

// The CRC of `bytes`, continued from `before`: Crc32c(b, n, Crc32c(a, m)) is that of a and b together. Uses the
// processor's instruction if it has one.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t before = 0);

// The same computed with a table, for processors without the instruction and for tests.
uint32_t Crc32cByTable(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace jaxring
