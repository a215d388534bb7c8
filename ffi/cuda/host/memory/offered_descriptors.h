// The descriptors that other processes may fetch from this one: those of its regions that are shared by descriptor, and
// others that are handed out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "cuda/host/gpu/gpu_sharing.h"
#include "cuda/host/memory/descriptors.h"

namespace jaxring::cuda {

class OfferedDescriptors {
 public:
  explicit OfferedDescriptors(GpuSharing& sharing)
      : sharing_(sharing), server_([this](uint32_t number) { return Open(number); }) {}

  // Where peers ask for them.
  const DescriptorSource& source() const { return server_.source(); }
  // From now on the descriptor of that number is that of the allocation.
  void AddRegion(uint32_t number, const Allocation& allocation);
  // Returns the number of a descriptor that `make` opens for each request, on the server's thread.
  uint32_t HandOut(std::function<int()> make);

 private:
  int Open(uint32_t number);

  GpuSharing& sharing_;
  Mutex mutex_;
  std::map<uint32_t, Allocation> regions_ JAXRING_GUARDED_BY(mutex_);
  std::vector<std::function<int()>> handed_out_ JAXRING_GUARDED_BY(mutex_);  // numbered from kMaxRegions
  DescriptorServer server_;  // the last member, so that its thread ends first
};

}  // namespace jaxring::cuda
