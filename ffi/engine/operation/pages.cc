#include "engine/operation/pages.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels answer EINVAL
#endif

namespace jaxring {
namespace {

// Smaller results lie in memory that the allocator keeps.
constexpr size_t kLeastBytes = 128 * 1024;
constexpr size_t kHugeBytes = 2 * 1024 * 1024;
// One call of mincore checks up to so many pages. Of longer results so many single pages are checked.
constexpr size_t kCheckedPages = 256, kSampledPages = 16;

std::atomic<bool> populate_works{true};

size_t PageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

bool HugePagesThere() {
  static const bool there = [] {
    FILE* file = std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (file == nullptr) return false;
    char text[64] = {};
    const bool got = std::fgets(text, sizeof text, file) != nullptr;
    std::fclose(file);
    return got && std::strstr(text, "[never]") == nullptr;
  }();
  return there;
}

// The whole units of `unit` bytes within a range.
struct Range {
  uintptr_t begin, end;
  Range(void* data, size_t bytes, size_t unit)
      : begin((reinterpret_cast<uintptr_t>(data) + unit - 1) / unit * unit),
        end((reinterpret_cast<uintptr_t>(data) + bytes) / unit * unit) {}
  size_t bytes() const { return end > begin ? end - begin : 0; }
};

bool AnyMissing(uintptr_t begin, size_t pages) {
  unsigned char present[kCheckedPages];
  if (mincore(reinterpret_cast<void*>(begin), pages * PageBytes(), present) != 0) return false;
  return std::any_of(present, present + pages, [](unsigned char page) { return (page & 1) == 0; });
}

}  // namespace

Pages PreparePages(void* data, size_t bytes) {
  if (bytes < kLeastBytes) return Pages::kPresent;
  const Range pages(data, bytes, PageBytes());
  const size_t count = pages.bytes() / PageBytes();
  bool missing = count <= kCheckedPages && AnyMissing(pages.begin, count);
  for (size_t i = 0; i < kSampledPages && !missing && count > kCheckedPages; ++i) {
    missing = AnyMissing(pages.begin + (count - 1) * i / (kSampledPages - 1) * PageBytes(), 1);
  }
  if (!missing) return Pages::kPresent;
  const Range huge(data, bytes, kHugeBytes);
  if (huge.bytes() < bytes / 2 || !HugePagesThere() ||
      madvise(reinterpret_cast<void*>(huge.begin), huge.bytes(), MADV_HUGEPAGE) != 0) {
    return Pages::kFresh;
  }
  return Pages::kHuge;
}

Pages PrepareBlocks(std::span<char* const> blocks, size_t bytes) {
  Pages all = Pages::kPresent;
  for (char* block : blocks) {
    const Pages pages = PreparePages(block, bytes);
    if (all == Pages::kPresent || pages == Pages::kFresh) all = pages;
  }
  return all;
}

void PopulatePages(void* data, size_t bytes) {
  if (!populate_works.load(std::memory_order_relaxed)) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / PageBytes() * PageBytes();
  const size_t length = reinterpret_cast<uintptr_t>(data) + bytes - begin;
  if (madvise(reinterpret_cast<void*>(begin), length, MADV_POPULATE_WRITE) != 0 && errno == EINVAL) {
    populate_works.store(false, std::memory_order_relaxed);
  }
}

bool KeepFreedBlocks(size_t bytes) {
#ifdef __GLIBC__
  // A block is so much larger than its result: malloc's header, and room to align it.
  constexpr size_t kAround = 64 * 1024;
  // mallopt(3) documents this limit; later versions accept more.
  constexpr size_t kPromised = 32 * 1024 * 1024;
  constexpr size_t kMost = std::numeric_limits<int>::max();
  const size_t wanted = std::min(bytes + kAround, kMost);
  for (const size_t block : {wanted, std::min(wanted, kPromised)}) {
    if (mallopt(M_MMAP_THRESHOLD, static_cast<int>(block)) == 0) continue;
    // Results are allocated and freed in turns, and aligning a block may need the room of two.
    return mallopt(M_TRIM_THRESHOLD, static_cast<int>(std::min(4 * block, kMost))) != 0;
  }
#else
  static_cast<void>(bytes);
#endif
  return false;
}

}  // namespace jaxring
