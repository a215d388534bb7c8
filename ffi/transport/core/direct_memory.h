// Bytes that go past a link's slots: a NIC reads them where they are, in memory that was registered with it, and the
// peer's NIC writes them to where they belong. A message of the link that goes along says that they are there. Links by
// RDMA have this; the memory may be a GPU's.
#pragma once

#include <cstdint>
#include <string>

namespace jaxring {

// `dmabuf`: a descriptor by which NICs reach memory that is not the host's; the region begins `offset` bytes behind its
// first one. -1: by address.
struct DirectRegion {
  char* memory;
  uint64_t bytes;
  int dmabuf = -1;
  uint64_t offset = 0;
};

// From a place of a region of ours to one of the peer's, each with the key that its registration gave.
struct DirectPiece {
  const char* from;
  uint32_t key;
  uint32_t to_key;
  uint64_t to;
  uint32_t bytes;
};

class DirectMemory {
 public:
  virtual ~DirectMemory() = default;
  // The NIC's name.
  virtual const std::string& device() const = 0;
  // For as long as the link lives, which the memory must outlive. The sender's end has it read, the receiver's written
  // by the peer. Throws std::runtime_error with a sentence.
  virtual uint32_t Register(const DirectRegion& region) = 0;
};

class DirectSend : public DirectMemory {
 public:
  // The message at a position of the LL ring, reserved and not published yet, takes these bytes along: whoever finds it
  // finds them in their place. They stay as they are until the peer says that it has read them.
  virtual void Attach(uint64_t position, const DirectPiece& piece) = 0;
};

}  // namespace jaxring
