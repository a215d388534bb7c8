// Names of device memory between processes.
#pragma once

#include <chrono>
#include <cstdint>

#include "cuda/host/gpu/gpu_memory.h"

namespace jaxring::cuda {

using Deadline = std::chrono::steady_clock::time_point;

// A location in a process's memory: an offset into one of its regions, or, with region 0, an address.
struct Location {
  uint64_t region = 0;
  uint64_t offset = 0;
};

// Whether that many bytes at the pointer are inside the allocation.
inline bool Within(const Allocation& allocation, const void* pointer, uint64_t bytes) {
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(pointer) - allocation.base);
  return offset <= allocation.bytes && bytes <= allocation.bytes - offset;
}

}  // namespace jaxring::cuda
