// Page faults of results. XLA gives a large result untouched pages each time, and the first touch of a 4 KiB page takes
// longer than the collective's own work on it. So malloc is told to keep freed blocks. If memory is untouched all the
// same, huge pages are requested where whole ones fit, and the remaining pages are populated with one call for each
// tile, by the thread that is about to write it.
//
// Nothing here changes the contents of memory, or touches pages outside of a result. XLA owns the memory all along.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxring {

// The state of a result's pages when its operation begins.
enum class Pages : uint8_t {
  kPresent,  // nothing to do: populated, or too small to matter
  kFresh,    // some are not populated
  kHuge,     // some are not populated, and most of them will be huge pages
};

// Checks a few pages of [data, data + bytes), and requests huge ones if any is not populated. Never fails: if the
// kernel refuses, pages are populated one by one, as without this call.
[[gnu::hot]] Pages PreparePages(void* data, size_t bytes);
// Does so for each block of a result, of `bytes` each. The state is the same for all: fresh if any block is.
Pages PrepareBlocks(std::span<char* const> blocks, size_t bytes);

// Populates the pages of [data, data + bytes), all of which is about to be written.
void PopulatePages(void* data, size_t bytes);

// Makes malloc keep freed blocks of up to `bytes` for later blocks of their size, and up to four times as much at the
// end of its heap, instead of returning their pages. By default glibc does so up to 32 MiB, with twice as much at the
// end of the heap, once a program has freed a block of that size. This affects all allocations of the process. False if
// the C library cannot do it.
bool KeepFreedBlocks(size_t bytes);

}  // namespace jaxring
