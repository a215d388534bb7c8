// The fake GPU's memory: files in memory, which other processes can map. What this process has allocated, with its
// file, and what it has mapped of others.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "cuda/host/gpu/gpu_memory.h"

namespace jaxring::cuda::fake {

class Mappings {
 public:
  // This process's, never destroyed.
  static Mappings& Get();

  // Zero-filled memory, at the address `at` unless that is nullptr. With `own_device_only`, other devices reach it
  // after a grant.
  char* Allocate(int device, uint64_t bytes, Sharing sharing, bool own_device_only = false, char* at = nullptr);
  void Free(char* memory);
  // The allocation of a pointer; without a base if there is none.
  Allocation Find(const void* pointer);
  bool Reaches(int device, const Allocation& allocation);
  void Grant(int device, const Allocation& allocation);
  // The file descriptor of the allocation, which is open until it is freed. If it was freed, throws GpuError, which
  // says that `call` has failed.
  int Descriptor(const Allocation& allocation, const char* call);
  // A duplicate, which the caller closes.
  int DuplicateDescriptor(const Allocation& allocation, const char* call);

  // Maps another process's allocation.
  char* Map(int fd, uint64_t bytes);
  // Whether the pointer is into another process's allocation.
  bool Foreign(const void* pointer);

 private:
  struct Own {
    Allocation allocation;
    int fd;
    bool own_device_only;
  };
  int DescriptorLocked(const Allocation& allocation, const char* call);

  std::mutex mutex_;
  std::map<const char*, Own> own_;
  std::map<const char*, uint64_t> foreign_;
  std::set<std::pair<const char*, int>> granted_;
  uint64_t last_id_ = 0;
};

}  // namespace jaxring::cuda::fake
