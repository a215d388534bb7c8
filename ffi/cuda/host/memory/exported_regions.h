// This process's device memory that others address: which allocations it has listed in its region directory, and which
// peers have mapped them.
//
// A driver may export or copy only after other work, so listing is the work of a thread of its own, the publisher. No
// launch waits for it: TryShare returns at once, and only planning threads call what waits.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/location.h"
#include "cuda/host/memory/offered_descriptors.h"
#include "cuda/host/memory/region_directory.h"
#include "cuda/host/memory/region_table.h"
#include "cuda/host/memory/service.h"
#include "transport/core/doorbell.h"

namespace jaxring::cuda {

class ExportedRegions {
 public:
  // `process`: this process's number in the job.
  ExportedRegions(Gpu& gpu, int process);

  int directory_fd() const { return directory_->fd(); }
  // Rings the doorbell of a peer when something has been listed.
  void AddPeer(std::shared_ptr<Doorbell> doorbell);

  // The region of an allocation if all `processes` have mapped it, else 0. Never waits. The first call for an
  // allocation has it listed, so that a later call may find it mapped.
  uint32_t TryShare(const Allocation& allocation, const std::set<int>& processes);
  // Lists the allocation of `bytes` at a pointer and waits until all `processes` have mapped it. Returns false where it
  // stays unshared, and in `*why_not` for what reason. `look` is called while it waits and may throw to end the wait.
  bool Share(const void* pointer, uint64_t bytes, const std::set<int>& processes, Deadline deadline, Location* location,
             std::string* why_not, const std::function<void()>& look = {});
  // Has the process's other devices named for the memory, some time later.
  void PostGrant(const std::vector<int>& devices, const void* pointer);

  // The base of one of its regions.
  uint64_t Base(uint32_t region);
  // The table of its regions, as kernels of `device` read it.
  const uint64_t* Table(int device);

  // Registers a descriptor and returns the number by which peers fetch it; `make` opens it for each request, on the
  // server's thread.
  uint32_t HandOut(std::function<int()> make) { return descriptors_.HandOut(std::move(make)); }

  // Allocations that peers may map, by the two ways of sharing, and those that cannot be exported.
  struct Counts {
    uint64_t by_handle = 0, by_descriptor = 0, unshared = 0;
  };
  Counts counts();

 private:
  RegionTable& OwnTable(int device);
  uint32_t List(const Allocation& allocation);
  uint32_t NewRegion(const Allocation& allocation);
  Mapping MappingOf(int process, uint32_t number, std::string* why_not);

  GpuMemory& memory_;
  GpuSharing& sharing_;
  const int process_;
  std::vector<std::string> uuids_;  // of the devices that this process sees
  const std::unique_ptr<RegionDirectory> directory_;
  OfferedDescriptors descriptors_;
  // Never held during a call of the driver.
  Mutex mutex_;
  // Allocation id -> region; 0: it cannot be exported.
  std::map<uint64_t, uint32_t> numbers_ JAXRING_GUARDED_BY(mutex_);
  std::set<uint64_t> posted_ JAXRING_GUARDED_BY(mutex_);  // allocation ids that are about to be listed
  // Allocation id -> why it cannot be exported.
  std::map<uint64_t, std::string> unshared_ JAXRING_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Doorbell>> doorbells_ JAXRING_GUARDED_BY(mutex_);  // of the peers
  std::map<int, RegionTable> tables_;   // by device. Only the publisher's thread uses these two
  std::map<uint32_t, uint64_t> bases_;  // by region
  std::atomic<uint64_t> by_handle_{0}, by_descriptor_{0};
  // Exports allocations, one after another. A thread of its own, so that launches that use the runtime's service do not
  // wait behind a driver that exports or copies. The last member, so that its work ends first.
  Service publisher_;
};

}  // namespace jaxring::cuda
