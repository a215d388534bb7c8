// CRC-32C (Castagnoli's polynomial, RFC 3720): what headers on a wire are sealed with, and payloads where asked for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxring {

// Of `bytes`, going on from `before`: Crc32c(b, n, Crc32c(a, m)) is that of a and b together. By the processor's own
// instruction where it has one.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t before = 0);

// The same from a table, for processors without one and for tests.
uint32_t Crc32cByTable(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace jaxring
