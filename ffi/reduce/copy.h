// Copies within the processor's memory, with or without its caches.
#pragma once

#include <cstddef>

namespace jaxring {

// memcpy, by non-temporal stores where `stream`; nothing where dst is src.
void CopyBlock(void* dst, const void* src, size_t bytes, bool stream);

}  // namespace jaxring
