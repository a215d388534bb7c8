// What the processes of a host tell each other of their device memory. Each process has one directory in shared memory
// that its peers map: it lists the process's exported allocations by region number, and its readers say how far they
// have mapped them. The memory is unnamed and goes away with the last process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/descriptors.h"

namespace jaxring::cuda {

inline constexpr uint32_t kMaxRegions = 2048;  // number 0 is never listed: it stands for addresses
inline constexpr uint32_t kMaxReaders = 256;

struct DirectoryRecord {
  IpcHandle handle;  // where `sharing` is kHandle
  Sharing sharing;
  uint64_t bytes;
  char device[64];  // its uuid
};

// `count` is written last by the owner (release); a record never changes after that. A reader claims its place once,
// writes `reason` before it marks itself `failed`, and `mapped` (release) after its tables hold the addresses.
struct DirectoryPage {
  std::atomic<uint32_t> count;
  DescriptorSource descriptors;  // written before the directory is known to anybody
  DirectoryRecord records[kMaxRegions];
  struct Reader {
    std::atomic<uint32_t> process;  // + 1; 0: free
    std::atomic<uint32_t> mapped;   // regions below this number
    std::atomic<uint32_t> failed;
    char reason[244];
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
  // The place of a reader; claims one if `claim`, nullptr if there is none.
  DirectoryPage::Reader* Place(int process, bool claim);

 private:
  RegionDirectory(int fd, DirectoryPage* page) : fd_(fd), page_(page) {}
  static std::unique_ptr<RegionDirectory> Map(int fd);
  int fd_;
  DirectoryPage* page_;
};

}  // namespace jaxring::cuda
