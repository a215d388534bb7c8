#include "engine/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels answer EINVAL
#endif

namespace jaxring {
namespace {

// Smaller results come out of memory that the allocator keeps.
constexpr size_t kLeastBytes = 128 * 1024;
constexpr size_t kHugeBytes = 2 * 1024 * 1024;
// Pages that are looked at, and at most one in so many bytes.
constexpr size_t kProbes = 16, kProbeBytes = 64 * 1024;

std::atomic<bool> huge_allowed{true}, populate_works{true};

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

bool Missing(uintptr_t page) {
  unsigned char present = 1;
  return mincore(reinterpret_cast<void*>(page), PageBytes(), &present) == 0 && (present & 1) == 0;
}

}  // namespace

Pages PreparePages(void* data, size_t bytes) {
  if (bytes < kLeastBytes) return Pages::kPresent;
  const Range pages(data, bytes, PageBytes());
  const size_t count = pages.bytes() / PageBytes();
  const size_t probes = std::min(kProbes, bytes / kProbeBytes);
  bool missing = false;
  for (size_t i = 0; i < probes && !missing; ++i) {
    missing = Missing(pages.begin + (count - 1) * i / (probes - 1) * PageBytes());
  }
  if (!missing) return Pages::kPresent;
  const Range huge(data, bytes, kHugeBytes);
  if (huge.bytes() < bytes / 2 || !huge_allowed.load(std::memory_order_relaxed) || !HugePagesThere() ||
      madvise(reinterpret_cast<void*>(huge.begin), huge.bytes(), MADV_HUGEPAGE) != 0) {
    return Pages::kFresh;
  }
  return Pages::kHuge;
}

void PopulatePages(void* data, size_t bytes) {
  if (!populate_works.load(std::memory_order_relaxed)) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / PageBytes() * PageBytes();
  const size_t length = reinterpret_cast<uintptr_t>(data) + bytes - begin;
  if (madvise(reinterpret_cast<void*>(begin), length, MADV_POPULATE_WRITE) != 0 && errno == EINVAL) {
    populate_works.store(false, std::memory_order_relaxed);
  }
}

void AllowHugePages(bool allow) { huge_allowed.store(allow, std::memory_order_relaxed); }

}  // namespace jaxring
