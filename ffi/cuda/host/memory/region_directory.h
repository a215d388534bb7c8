// A process's region directory: a page of shared memory that its peers map. It lists the process's exported allocations
// by region number, and each reader writes into it which of them it has mapped. The memory has no name and is freed
// with the last process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/host/gpu/gpu_sharing.h"
#include "cuda/host/memory/descriptors.h"

namespace jaxring::cuda {

inline constexpr uint32_t kMaxRegions = 2048;  // number 0 is never listed: it means an address
inline constexpr uint32_t kMaxReaders = 256;

struct DirectoryRecord {
  IpcHandle handle;  // where `sharing` is kHandle
  Sharing sharing;
  uint64_t bytes;
  char device[64];  // its uuid
};

// What a reader has done with a region.
enum class Mapping : uint8_t { kNotYet = 0, kMapped, kFailed };

// The owner writes `count` last (release), and never changes a record after that. A reader claims its entry once. It
// stores kMapped (release) after its tables hold the region's address. `reason` describes its first failure, of region
// `reason_of`, which is stored (release) before that region's kFailed.
struct DirectoryPage {
  std::atomic<uint32_t> count;
  DescriptorSource descriptors;  // written before any peer maps the directory
  DirectoryRecord records[kMaxRegions];
  struct Reader {
    std::atomic<uint32_t> process;    // + 1; 0: free
    std::atomic<uint32_t> reason_of;  // 0: nothing has failed
    char reason[248];
    std::atomic<Mapping> mappings[kMaxRegions];
  } readers[kMaxReaders];
};

class RegionDirectory {
 public:
  static std::unique_ptr<RegionDirectory> Create();
  // The directory behind `path` (/proc/<pid>/fd/<n>) of another process. Throws std::system_error.
  static std::unique_ptr<RegionDirectory> Open(const std::string& path);
  ~RegionDirectory();
  RegionDirectory(const RegionDirectory&) = delete;

  DirectoryPage& page() { return *page_; }
  int fd() const { return fd_; }
  // The entry of a reader, or nullptr; claims a free one if `claim`.
  DirectoryPage::Reader* Place(int process, bool claim);

 private:
  RegionDirectory(int fd, DirectoryPage* page) : fd_(fd), page_(page) {}
  static std::unique_ptr<RegionDirectory> Map(int fd);
  int fd_;
  DirectoryPage* page_;
};

}  // namespace jaxring::cuda
