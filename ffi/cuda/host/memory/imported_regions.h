// Device memory of other processes that this one has mapped, for each device that it uses.
//
// A thread watches the peers' region directories. A driver may map memory only after the kernels that run on the
// device, and these may wait for a launch of the memory's owner, so no launch waits for that thread: only planning
// threads call what waits.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/condition_variable.h"
#include "base/mutex.h"
#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/location.h"
#include "cuda/host/memory/region_directory.h"
#include "cuda/host/memory/region_table.h"
#include "transport/core/doorbell.h"

namespace jaxring::cuda {

class ImportedRegions {
 public:
  // `process`: this process's number in the job.
  ImportedRegions(Gpu& gpu, int process);
  ~ImportedRegions();
  ImportedRegions(const ImportedRegions&) = delete;

  // Peers ring it when they have listed memory.
  int doorbell_fd() const { return doorbell_->fd(); }
  // Maps a peer's directory, and from now on what it lists. Returns the peer's doorbell, or nullptr at later calls for
  // the same peer, which do nothing.
  std::shared_ptr<Doorbell> Attach(int process, const std::string& directory_path, const std::string& doorbell_path);
  // Maps peers' memory for `device`, too, from now on. Returns whether it was not done before.
  bool Use(int device);

  // The address of a peer's region for kernels of `device`. Waits until it is mapped.
  uint64_t Base(int device, int process, uint32_t region, Deadline deadline);
  // The table of a peer's regions, as kernels of `device` read it.
  const uint64_t* Table(int device, int process);
  // Returns a descriptor that a peer hands out, which the caller closes. Throws std::runtime_error.
  int Fetch(int process, uint32_t number);

  struct Counts {
    uint64_t mapped_bytes = 0;
    uint64_t failed_mappings = 0;  // of regions
  };
  Counts counts() const { return {mapped_bytes_, failed_mappings_}; }

 private:
  struct Failure {
    std::string reason;
    size_t times;    // that it was tried again
    Deadline again;  // when it is next
  };
  struct Peer {
    int process;
    std::unique_ptr<RegionDirectory> directory;
    DirectoryPage::Reader* place;
    uint32_t confirmed = 1;              // regions below this number have been confirmed or have failed
    std::map<uint32_t, Failure> failed;  // by region
  };
  struct PeerTable : RegionTable {
    using RegionTable::RegionTable;
    uint32_t tried = 1;  // regions below this number are mapped or have failed
  };
  void Watch();
  void MapNews(Peer& peer);
  void MapFailed(Peer& peer);
  uint64_t MapOne(int device, RegionTable& table, uint32_t number, const DirectoryPage& page);
  void Failed(Peer& peer, uint32_t number, const char* reason) JAXRING_REQUIRES(mutex_);
  PeerTable& TableOf(int device, int process) JAXRING_REQUIRES(mutex_);

  Gpu& gpu_;
  const int process_;
  std::map<std::string, int> ordinals_;  // of this process's devices, by uuid
  const std::unique_ptr<Doorbell> doorbell_;
  // Not held during a call of the driver that maps memory.
  Mutex mutex_;
  ConditionVariable changed_;
  std::set<int> devices_ JAXRING_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Peer>> peers_ JAXRING_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, PeerTable> tables_ JAXRING_GUARDED_BY(mutex_);  // by device and process
  std::atomic<uint64_t> mapped_bytes_{0}, failed_mappings_{0};
  std::atomic<bool> stop_{false};
  std::thread watcher_;
};

}  // namespace jaxring::cuda
