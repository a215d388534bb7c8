// What the processes of a host tell each other of their device memory. Each process has one board in shared memory that
// its peers map: it lists the process's exported allocations by region number, and its readers say how far they have
// mapped them. The memory is unnamed and goes away with the last process.
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

struct BoardRecord {
  IpcHandle handle;  // where `sharing` is kHandle
  Sharing sharing;
  uint64_t bytes;
  char device[64];  // its uuid
};

// `count` is written last by the owner (release); a record never changes after that. A reader claims its place once,
// writes `reason` before it marks itself `failed`, and `mapped` (release) after its tables hold the addresses.
struct BoardPage {
  std::atomic<uint32_t> count;
  DescriptorSource descriptors;  // written before the board is known to anybody
  BoardRecord records[kMaxRegions];
  struct Reader {
    std::atomic<uint32_t> process;  // + 1; 0: free
    std::atomic<uint32_t> mapped;   // regions below this number
    std::atomic<uint32_t> failed;
    char reason[244];
  } readers[kMaxReaders];
};

class Board {
 public:
  static std::unique_ptr<Board> Create();
  // The board behind `path` (/proc/<pid>/fd/<n>) of another process. Throws std::system_error.
  static std::unique_ptr<Board> Open(const std::string& path);
  ~Board();
  Board(const Board&) = delete;

  BoardPage& page() { return *page_; }
  int fd() const { return fd_; }
  // The place of a reader; claims one if `claim`, nullptr if there is none.
  BoardPage::Reader* Place(int process, bool claim);

 private:
  Board(int fd, BoardPage* page) : fd_(fd), page_(page) {}
  static std::unique_ptr<Board> Map(int fd);
  int fd_;
  BoardPage* page_;
};

}  // namespace jaxring::cuda
