// Blocks of a process's memory that the other processes of its host read.
//
// A process writes a payload that goes to several of them once, into a shared block. The ring to each carries a message
// that names it, and the last reader frees it. If none is free, the sender does not wait: it copies the payload
// into a slot of each ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "transport/core/shared_memory.h"

namespace jaxring {

class SharedBlockPool {
 public:
  // Take returns the first free block, so that few are in use and these stay in the caches: a lane uses about three.
  static constexpr uint32_t kBlocks = 32;

  // Blocks are as long as a slot's payload.
  static SharedBlockPool Create(uint32_t block_bytes);
  // Maps a peer's pool. Its size must be the one that this process's settings give.
  static SharedBlockPool Open(const std::string& path, uint32_t block_bytes);
  // The same memory, not owned.
  SharedBlockPool View() const { return {memory_.View(), block_bytes_}; }

  // Takes the first free block with a reference count of `holders`. Returns -1 if no block is free.
  int Take(uint32_t holders);
  // Drops that many references.
  void Leave(uint32_t block, uint32_t holders) { Holders(block).fetch_sub(holders, std::memory_order_acq_rel); }
  char* data(uint32_t block) const { return memory_.data() + kControlBytes + size_t{block} * block_bytes_; }

  // How many blocks are in use.
  uint32_t held() const;
  uint32_t block_bytes() const { return block_bytes_; }
  int fd() const { return memory_.fd(); }
  size_t bytes() const { return memory_.bytes(); }

 private:
  // Each reference count has a cache line of its own, since other processes change it.
  static constexpr size_t kLine = 64, kControlBytes = 4096;
  static_assert(kBlocks * kLine <= kControlBytes);
  SharedBlockPool(SharedMemory memory, uint32_t block_bytes) : memory_(std::move(memory)), block_bytes_(block_bytes) {}
  static size_t Bytes(uint32_t block_bytes) { return kControlBytes + size_t{kBlocks} * block_bytes; }
  std::atomic<uint32_t>& Holders(uint32_t block) const {
    return *reinterpret_cast<std::atomic<uint32_t>*>(memory_.data() + block * kLine);
  }

  SharedMemory memory_;
  uint32_t block_bytes_;
};

inline SharedBlockPool SharedBlockPool::Create(uint32_t block_bytes) {
  return {SharedMemory::Create(Bytes(block_bytes), "messages for several processes"), block_bytes};
}

inline SharedBlockPool SharedBlockPool::Open(const std::string& path, uint32_t block_bytes) {
  return {SharedMemory::Open(path, Bytes(block_bytes), "messages for several processes"), block_bytes};
}

inline int SharedBlockPool::Take(uint32_t holders) {
  for (uint32_t block = 0; block < kBlocks; ++block) {
    uint32_t none = 0;
    if (Holders(block).load(std::memory_order_relaxed) == 0 &&
        Holders(block).compare_exchange_strong(none, holders, std::memory_order_acq_rel)) {
      return static_cast<int>(block);
    }
  }
  return -1;
}

inline uint32_t SharedBlockPool::held() const {
  uint32_t count = 0;
  for (uint32_t block = 0; block < kBlocks; ++block) count += Holders(block).load(std::memory_order_acquire) != 0;
  return count;
}

}  // namespace jaxring
