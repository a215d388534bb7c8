#include "cuda/sim/fake/mappings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <string>

#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/fake/machine.h"

namespace jaxring::cuda::fake {

Mappings& Mappings::Get() {
  static auto* mappings = new Mappings;
  return *mappings;
}

char* Mappings::Allocate(int device, uint64_t bytes, Sharing sharing, bool own_device_only, char* at) {
  const int fd = memfd_create("jaxring-fake-gpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw GpuError("out of memory");
  const int flags = at == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED;
  void* mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (mapped == MAP_FAILED) throw GpuError("out of memory");
  auto* memory = static_cast<char*>(mapped);
  std::lock_guard lock(mutex_);
  own_[memory] = {{memory, bytes, ++last_id_, device, sharing}, fd, own_device_only};
  return memory;
}

void Mappings::Free(char* memory) {
  std::lock_guard lock(mutex_);
  auto it = own_.find(memory);
  if (it == own_.end()) throw GpuError("free of what was not allocated");
  munmap(memory, it->second.allocation.bytes);
  close(it->second.fd);
  own_.erase(it);
}

Allocation Mappings::Find(const void* pointer) {
  std::lock_guard lock(mutex_);
  auto it = own_.upper_bound(static_cast<const char*>(pointer));
  if (it == own_.begin()) return {};
  Allocation found = std::prev(it)->second.allocation;
  if (static_cast<const char*>(pointer) >= found.base + found.bytes) return {};
  if (found.device < 0 || options().no_export) found.sharing = Sharing::kNone;
  return found;
}

bool Mappings::Reaches(int device, const Allocation& allocation) {
  std::lock_guard lock(mutex_);
  return !own_.at(allocation.base).own_device_only || granted_.count({allocation.base, device}) != 0;
}

void Mappings::Grant(int device, const Allocation& allocation) {
  std::lock_guard lock(mutex_);
  granted_.insert({allocation.base, device});
}

int Mappings::DescriptorLocked(const Allocation& allocation, const char* call) {
  const auto found = own_.find(allocation.base);
  if (found == own_.end() || found->second.allocation.id != allocation.id) {
    throw GpuError(std::string(call) + ": invalid argument (1)");
  }
  return found->second.fd;
}

int Mappings::Descriptor(const Allocation& allocation, const char* call) {
  std::lock_guard lock(mutex_);
  return DescriptorLocked(allocation, call);
}

int Mappings::DuplicateDescriptor(const Allocation& allocation, const char* call) {
  std::lock_guard lock(mutex_);
  return fcntl(DescriptorLocked(allocation, call), F_DUPFD_CLOEXEC, 0);
}

char* Mappings::Map(int fd, uint64_t bytes) {
  if (options().map_behind_kernels) Machine::Get().AwaitNoKernel();
  // Kernels learn by way of the peer's process that it is mapped, which ThreadSanitizer does not see.
  void* memory;
  {
    simt::Unseen unseen;
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (memory == MAP_FAILED) throw GpuError("cannot map a peer's memory");
  std::lock_guard lock(mutex_);
  foreign_[static_cast<char*>(memory)] = bytes;
  return static_cast<char*>(memory);
}

bool Mappings::Foreign(const void* pointer) {
  std::lock_guard lock(mutex_);
  auto it = foreign_.upper_bound(static_cast<const char*>(pointer));
  if (it == foreign_.begin()) return false;
  --it;
  return static_cast<const char*>(pointer) < it->first + it->second;
}

}  // namespace jaxring::cuda::fake
