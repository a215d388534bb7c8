// Device memory that several ranks address: which allocations of this process its peers have mapped, under which region
// numbers, and where this process has mapped theirs.
//
// An allocation is shared once. Its owner lists it in its region directory. Each peer's mapping thread maps it for
// every device that it uses, enters the address in the table that kernels read, and confirms this in the directory.
// Only then does the owner launch a kernel that names the region, so a kernel never reads a number that its own table
// lacks. Entries never change, so graphs can be replayed. A mapping lives until its process ends.
//
// A driver may map memory only after the kernels that run on the device, and these may wait for a launch of the
// memory's owner. So no launch waits for a mapping: TryShare returns at once, and only planning threads call what
// waits.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/condition_variable.h"
#include "base/mutex.h"
#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/descriptors.h"
#include "cuda/host/memory/region_directory.h"
#include "cuda/host/memory/service.h"
#include "transport/core/doorbell.h"

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

class Regions {
 public:
  // `process`: this process's number in the job.
  Regions(Gpu& gpu, int process);
  ~Regions();
  Regions(const Regions&) = delete;

  int directory_fd() const { return directory_->fd(); }
  int doorbell_fd() const { return doorbell_->fd(); }
  // Maps a peer's directory and doorbell. Later calls for the same peer do nothing.
  void Attach(int process, const std::string& directory_path, const std::string& doorbell_path);
  // Maps peers' memory for `device`, too, from now on.
  void Use(int device);

  // The region of an allocation if all `processes` have mapped it, else 0. Never waits. The first call for an
  // allocation has it listed, so that a later call may find it mapped.
  uint32_t TryShare(const Allocation& allocation, const std::set<int>& processes);
  // Lists the allocation of `bytes` at a pointer and waits until all `processes` have mapped it. Returns false where it
  // stays unshared, and in `*why_not` for what reason. `look` is called while it waits and may throw to end the wait.
  bool Share(const void* pointer, uint64_t bytes, const std::set<int>& processes, Deadline deadline, Location* location,
             std::string* why_not, const std::function<void()>& look = {});
  // Has the process's other devices named for the memory, some time later.
  void PostGrant(const std::vector<int>& devices, const void* pointer);
  // The address of a peer's location for kernels of `device`. Waits until it is mapped.
  char* Resolve(int device, int process, Location location, Deadline deadline);
  // The table of the regions of a process (which may be this one), as kernels of `device` read it.
  const uint64_t* Table(int device, int process);

  // HandOut registers a descriptor and returns the number by which peers fetch it; `make` opens it for each request, on
  // the server's thread. Fetch returns a peer's descriptor, which the caller closes. Both throw std::runtime_error.
  uint32_t HandOut(std::function<int()> make);
  int Fetch(int process, uint32_t number);

  struct Counts {
    uint64_t mapped_bytes = 0;     // of peers' memory
    uint64_t failed_mappings = 0;  // of peers' regions
    // This process's allocations that peers may map, by the two ways of sharing, and those that cannot be exported.
    uint64_t by_handle = 0, by_descriptor = 0, unshared = 0;
  };
  Counts counts();

 private:
  struct Peer {
    int process;
    std::unique_ptr<RegionDirectory> directory;
    std::shared_ptr<Doorbell> doorbell;
    DirectoryPage::Reader* place;
    uint32_t confirmed = 1;                  // regions below this number have been confirmed or have failed
    std::map<uint32_t, std::string> failed;  // region -> reason
  };
  struct TableOf {
    uint64_t* entries = nullptr;  // device memory that kernels read
    std::vector<uint64_t> known;  // a copy in host memory; 0: not mapped
    uint32_t tried = 1;           // regions below this number are mapped or have failed
  };
  void Watch();
  void MapNews(Peer& peer);
  uint64_t MapOne(int device, TableOf& table, uint32_t number, const DirectoryPage& page);
  void Failed(Peer& peer, uint32_t number, const char* reason) JAXRING_REQUIRES(mutex_);
  int OpenRegion(uint32_t number);
  TableOf& TableLocked(int device, int process) JAXRING_REQUIRES(mutex_);
  TableOf& OwnTable(int device);
  uint32_t List(const Allocation& allocation);
  uint32_t NewRegion(const Allocation& allocation);
  Mapping MappingOf(int process, uint32_t number, std::string* why_not);

  Gpu& gpu_;
  const int own_process_;
  std::unique_ptr<RegionDirectory> directory_;
  std::unique_ptr<Doorbell> doorbell_;
  // Not held during a call of the driver that maps memory.
  Mutex mutex_ JAXRING_ACQUIRED_BEFORE(own_mutex_);
  ConditionVariable changed_;
  std::set<int> devices_ JAXRING_GUARDED_BY(mutex_);
  std::vector<std::string> uuids_;       // of the devices that this process sees
  std::map<std::string, int> ordinals_;  // by uuid
  std::vector<std::unique_ptr<Peer>> peers_ JAXRING_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, TableOf> tables_ JAXRING_GUARDED_BY(mutex_);  // (device, process), of peers
  // For this process's list; never held during a call of the driver.
  Mutex own_mutex_;
  // Allocation id -> region; 0: it cannot be exported.
  std::map<uint64_t, uint32_t> numbers_ JAXRING_GUARDED_BY(own_mutex_);
  std::set<uint64_t> posted_ JAXRING_GUARDED_BY(own_mutex_);  // allocation ids that are about to be listed
  // Allocation id -> why it cannot be exported.
  std::map<uint64_t, std::string> unshared_ JAXRING_GUARDED_BY(own_mutex_);
  std::vector<std::shared_ptr<Doorbell>> bells_ JAXRING_GUARDED_BY(own_mutex_);  // of the peers
  std::map<int, TableOf> own_tables_;      // by device. Only the publisher's thread uses these two
  std::map<uint32_t, uint64_t> own_base_;  // region -> base
  // Not mutex_: that is held during a request to a peer, which may send a request to this process meanwhile.
  Mutex descriptors_mutex_;
  // Regions that are shared by descriptor.
  std::map<uint32_t, Allocation> descriptors_ JAXRING_GUARDED_BY(descriptors_mutex_);
  std::vector<std::function<int()>> handed_out_ JAXRING_GUARDED_BY(descriptors_mutex_);  // numbered from kMaxRegions
  std::atomic<uint64_t> mapped_bytes_{0}, failed_mappings_{0}, by_handle_{0}, by_descriptor_{0};
  std::atomic<bool> stop_{false};
  std::unique_ptr<DescriptorServer> server_;
  std::thread watcher_;
  // Exports allocations, one after another. A thread of its own, so that launches that use the runtime's service do not
  // wait behind a driver that exports or copies. The last member, so that its work ends first.
  Service publisher_;
};

}  // namespace jaxring::cuda
