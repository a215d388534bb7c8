// Where the regions of one process are for kernels of one device.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/host/gpu/gpu_memory.h"
#include "cuda/host/memory/region_directory.h"

namespace jaxring::cuda {

// A base for each region number; 0: it is not mapped. Kernels may read the table at any time until the process ends, so
// its memory is never freed.
struct RegionTable {
  RegionTable(GpuMemory& memory, int device)
      : entries(reinterpret_cast<uint64_t*>(memory.Allocate(device, kMaxRegions * sizeof(uint64_t)))),
        known(kMaxRegions) {}
  uint64_t* entries;            // device memory
  std::vector<uint64_t> known;  // a copy in host memory
};

}  // namespace jaxring::cuda
