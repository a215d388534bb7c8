// Untouched memory is recognised, populating its pages changes nothing else, and malloc keeps freed memory.
#include "engine/operation/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

constexpr size_t kMiB = 1 << 20;

// The number of populated pages of [begin, begin + bytes); begin is that of a page.
size_t Present(char* begin, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> present((bytes + page - 1) / page);
  CHECK_EQ(mincore(begin, bytes, present.data()), 0);
  size_t count = 0;
  for (unsigned char p : present) count += p & 1;
  return count;
}

class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : bytes_(bytes),
        base_(static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    CHECK(base_ != MAP_FAILED);
  }
  ~Mapping() { munmap(base_, bytes_); }
  char* base() { return base_; }
  size_t Present(size_t begin, size_t bytes) { return test::Present(base_ + begin, bytes); }

 private:
  size_t bytes_;
  char* base_;
};

CASE("touched memory is left alone") {
  Mapping memory(8 * kMiB);
  std::memset(memory.base(), 1, 8 * kMiB);
  CHECK(PreparePages(memory.base() + 64, 8 * kMiB - 64) == Pages::kPresent);
}

CASE("blocks are fresh if one of them is") {
  Mapping memory(16 * kMiB);
  std::memset(memory.base(), 1, kMiB);
  char* const known[] = {memory.base(), memory.base() + kMiB / 2};
  CHECK(PrepareBlocks(known, kMiB / 2) == Pages::kPresent);
  for (int i : {0, 1}) {
    char* blocks[] = {known[0], known[1]};
    blocks[i] = memory.base() + 8 * kMiB;  // beyond a huge page that the others may be in
    CHECK(PrepareBlocks(blocks, kMiB / 2) == Pages::kFresh);
  }
}

CASE("small memory is left alone") {
  Mapping memory(kMiB);
  CHECK(PreparePages(memory.base(), 64 * 1024) == Pages::kPresent);
  CHECK(PreparePages(nullptr, 0) == Pages::kPresent);
  CHECK_EQ(memory.Present(0, kMiB), 0u);
}

CASE("untouched memory is found and not touched") {
  Mapping memory(16 * kMiB);
  CHECK(PreparePages(memory.base() + 64, 16 * kMiB - 64) != Pages::kPresent);
  // No whole huge page within.
  Mapping small(kMiB);
  CHECK(PreparePages(small.base() + 64, kMiB - 64) == Pages::kFresh);
  CHECK_EQ(memory.Present(0, 16 * kMiB), 0u);
}

CASE("half touched memory is found") {
  Mapping memory(kMiB);
  std::memset(memory.base(), 1, kMiB / 2);
  CHECK(PreparePages(memory.base() + 64, kMiB - 64) == Pages::kFresh);
}

CASE("populating keeps what is there") {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Mapping memory(64 * page);
  std::memset(memory.base(), 7, 9 * page);
  // From within the last touched page into the middle of a later one.
  PopulatePages(memory.base() + 8 * page + 100, 4 * page);
  for (size_t i = 0; i < 9 * page; ++i) CHECK_EQ(memory.base()[i], 7);
  // Kernels before 5.14 do nothing.
  const size_t present = memory.Present(0, 64 * page);
  CHECK(present == 13 || present == 9);
  for (size_t i = 9 * page; i < 13 * page; ++i) CHECK_EQ(memory.base()[i], 0);
  CHECK_EQ(memory.Present(13 * page, 51 * page), 0u);
}

size_t PresentInTheNextBlock(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* first = static_cast<char*>(std::malloc(bytes));
  CHECK(first != nullptr);
  // A memset right before free would be left out.
  for (size_t at = 0; at < bytes; at += page) static_cast<volatile char*>(first)[at] = 1;
  std::free(first);
  char* next = static_cast<char*>(std::malloc(bytes));
  CHECK(next != nullptr);
  const size_t present = Present(next + (page - reinterpret_cast<uintptr_t>(next) % page), bytes - page);
  std::free(next);
  return present;
}

CASE("freed blocks are kept") {
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // they have a malloc of their own
  // Freed blocks of 33 to 64 MiB go back to the system without it.
  CHECK_EQ(PresentInTheNextBlock(48 * kMiB), 0u);
  if (!KeepFreedBlocks(64 * kMiB)) return;  // not glibc
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  CHECK_EQ(PresentInTheNextBlock(16 * kMiB), 16 * kMiB / page - 1);
  CHECK_EQ(PresentInTheNextBlock(64 * kMiB), 64 * kMiB / page - 1);
  CHECK_EQ(PresentInTheNextBlock(80 * kMiB), 0u);
#endif
}

}  // namespace
}  // namespace jaxring::test
