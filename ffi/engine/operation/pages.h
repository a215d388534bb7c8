// Results in memory that nobody has touched yet: XLA gives a large result fresh pages each time, and the first touch of
// a 4 KiB page takes longer than the collective's own work on it. So malloc is told to keep what is freed; where memory
// is fresh all the same, huge pages are asked for where whole ones fit, and what is still missing is filled in one call
// a tile, by the thread that is about to write there.
//
// Nothing here changes what memory holds, and nothing reaches past the pages that a result lies on. XLA owns the memory
// all along.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxring {

// How a result's pages stand when its operation begins.
enum class Pages : uint8_t {
  kPresent,  // nothing to do: touched before, or too small to matter
  kFresh,    // some are missing
  kHuge,     // some are missing, and most of them will come as huge pages
};

// Looks at a few pages of [data, data + bytes) and asks for huge ones if any is missing. Never fails: where the kernel
// refuses, pages come one by one, as they would without it.
[[gnu::hot]] Pages PreparePages(void* data, size_t bytes);

// Brings in what is missing of the pages of [data, data + bytes), all of which is about to be written.
void PopulatePages(void* data, size_t bytes);

// From now on malloc keeps freed blocks of up to `bytes` for the next one of their size, and up to four times as much
// at the end of its heap, rather than giving their pages back. By itself glibc does so up to 32 MiB, with twice as much
// at the end, once a program has freed a block of that size. It is about the whole process, whatever is allocated.
// False where the C library cannot do it.
bool KeepFreedBlocks(size_t bytes);

// Whether PreparePages asks for huge pages (JAXRING_HUGE_PAGES); before the engine is used.
void AllowHugePages(bool allow);

}  // namespace jaxring
