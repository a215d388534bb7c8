// Device memory that several ranks address: which allocations of this process its peers have mapped, under which region
// numbers, and where this process has mapped theirs.
//
// An allocation is shared once. Its owner lists it in its region directory. Each peer's mapping thread maps it for
// every device that it uses, enters the address in the table that kernels read, and confirms this in the directory.
// Only then does the owner launch a kernel that names the region, so a kernel never reads a number that its own table
// lacks. Entries never change, so graphs can be replayed. A mapping lives until its process ends.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/descriptors.h"
#include "cuda/host/memory/region_directory.h"
#include "cuda/host/memory/service.h"
#include "transport/core/doorbell.h"

namespace jaxring::cuda {

using Deadline = std::chrono::steady_clock::time_point;
Deadline After(double seconds);

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
  Regions(Gpu& gpu, Service& service, int process);
  ~Regions();
  Regions(const Regions&) = delete;

  int directory_fd() const { return directory_->fd(); }
  int doorbell_fd() const { return doorbell_->fd(); }
  // Maps a peer's directory and doorbell. Later calls for the same peer do nothing.
  void Attach(int process, const std::string& directory_path, const std::string& doorbell_path);
  // Maps peers' memory for `device`, too, from now on.
  void Use(int device);

  // Finds the location of `bytes` at a pointer and waits until all `processes` have mapped it. Returns false if the
  // memory cannot be exported or is not a single allocation. Throws std::runtime_error that names the two processes,
  // also after `deadline`. `look` is called while it waits and may throw to end the wait.
  bool Publish(const void* pointer, uint64_t bytes, const std::set<int>& processes, Deadline deadline,
               Location* location, const std::function<void()>& look = {});
  // The address of a peer's location for kernels of `device`. Waits until it is mapped.
  char* Resolve(int device, int process, Location location, Deadline deadline);
  // The table of the regions of a process (which may be this one), as kernels of `device` read it.
  const uint64_t* Table(int device, int process);

  // HandOut registers a descriptor and returns the number by which peers fetch it; `make` opens it for each request, on
  // the server's thread. Fetch returns a peer's descriptor, which the caller closes. Both throw std::runtime_error.
  uint32_t HandOut(std::function<int()> make);
  int Fetch(int process, uint32_t number);

  Service& service() { return service_; }
  uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  struct Peer {
    int process;
    std::unique_ptr<RegionDirectory> directory;
    std::unique_ptr<Doorbell> doorbell;
    DirectoryPage::Reader* place;
  };
  struct TableOf {
    uint64_t* entries = nullptr;  // device memory that kernels read
    std::vector<uint64_t> known;  // a copy in host memory
    uint32_t mapped = 1;          // regions below this number are mapped
  };
  void Watch();
  void MapNews(Peer& peer);
  void MapOne(int device, TableOf& table, uint32_t number, const DirectoryPage& page);
  int OpenRegion(uint32_t number);
  TableOf& TableLocked(int device, int process);
  uint32_t ListLocked(const Allocation& allocation);
  void AwaitMapped(int process, uint32_t number, Deadline deadline, const std::function<void()>& look);

  Gpu& gpu_;
  Service& service_;
  const int own_process_;
  std::unique_ptr<RegionDirectory> directory_;
  std::unique_ptr<Doorbell> doorbell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> devices_;
  std::vector<std::string> uuids_;       // of the devices that this process sees
  std::map<std::string, int> ordinals_;  // by uuid
  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<std::pair<int, int>, TableOf> tables_;  // (device, process)
  std::map<uint64_t, uint32_t> numbers_;           // allocation id -> region
  std::set<uint64_t> unshared_;                    // allocation ids that could not be exported
  std::map<uint32_t, uint64_t> own_base_;          // region -> base
  std::mutex descriptors_mutex_;                   // not mutex_: that is held during a request to a peer, which may
                                                   // send a request to this process meanwhile
  std::map<uint32_t, Allocation> descriptors_;     // regions that are shared by descriptor
  std::vector<std::function<int()>> handed_out_;   // numbered from kMaxRegions
  std::atomic<uint64_t> mapped_bytes_{0};
  std::atomic<bool> stop_{false};
  std::unique_ptr<DescriptorServer> server_;
  std::thread watcher_;
};

}  // namespace jaxring::cuda
