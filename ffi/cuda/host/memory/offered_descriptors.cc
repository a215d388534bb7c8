#include "cuda/host/memory/offered_descriptors.h"

#include <utility>

#include "cuda/host/memory/region_directory.h"

namespace jaxring::cuda {

void OfferedDescriptors::AddRegion(uint32_t number, const Allocation& allocation) {
  MutexLock lock(mutex_);
  regions_[number] = allocation;
}

uint32_t OfferedDescriptors::HandOut(std::function<int()> make) {
  MutexLock lock(mutex_);
  handed_out_.push_back(std::move(make));
  return kMaxRegions + static_cast<uint32_t>(handed_out_.size()) - 1;
}

// Called for peers on the server's thread.
int OfferedDescriptors::Open(uint32_t number) {
  std::function<int()> make;
  {
    MutexLock lock(mutex_);
    if (const auto found = regions_.find(number); found != regions_.end()) {
      make = [this, allocation = found->second] { return sharing_.ExportDescriptor(allocation); };
    } else if (number >= kMaxRegions && number - kMaxRegions < handed_out_.size()) {
      make = handed_out_[number - kMaxRegions];
    } else {
      return -1;
    }
  }
  try {
    return make();
  } catch (const GpuError&) {
    return -1;
  }
}

}  // namespace jaxring::cuda
