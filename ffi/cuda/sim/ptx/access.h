// Addresses of translated PTX as the host's, with the checks of the hardware.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "cuda/device/device.h"
#include "cuda/sim/ptx/memory.h"

namespace jaxring::cuda::ptx {

// Ends the process, since a GPU would end the kernel with an error.
[[noreturn]] void Refuse(const char* what, u64 at);

inline simt::Thread& Self() { return *simt::Machine::current; }

inline char* SharedAt(u64 at, u64 bytes) {
  simt::Thread& self = Self();
  self.converged = false;
  const u32 offset = static_cast<u32>(at);
  if (offset % bytes != 0) Refuse("a misaligned access to shared memory", at);
  if (offset + bytes > self.shared_bytes) Refuse("an access beyond shared memory", at);
  return self.shared + offset;
}

// For an access of any order. What the block has stored there comes first.
inline char* GlobalAt(u64 at, u64 bytes, bool line = false) {
  simt::Thread& self = Self();
  if (!line) self.converged = false;
  if (at % bytes != 0) Refuse("a misaligned access", at);
  char* to = reinterpret_cast<char*>(at);
  if (to >= self.shared && to < self.shared + self.shared_bytes) Refuse("a generic access to shared memory", at);
  if (bytes == 16) ThisMachine().Chance();
  if (ThisMachine().delays()) ThisMachine().SettleRange(to, bytes);
  return to;
}

}  // namespace jaxring::cuda::ptx
