// Copies in host memory, through the caches or past them.
#pragma once

#include <cstddef>

namespace jaxring {

// memcpy, with non-temporal stores if `stream`. Does nothing if dst is src.
void CopyBlock(void* dst, const void* src, size_t bytes, bool stream);

}  // namespace jaxring
