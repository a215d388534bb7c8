// Payloads that bypass a link's slots. The NIC reads them from memory that was registered with it, and the peer's NIC
// writes them to their destination. A message of the link announces each of them. Only RDMA links offer this; the
// memory may be a GPU's.
#pragma once

#include <cstdint>
#include <string>

namespace jaxring {

// `dmabuf`: a descriptor by which a NIC addresses memory that is not the host's; the region begins `offset` bytes into
// it. -1: the memory is the host's, and the NIC uses its address.
struct DirectRegion {
  char* memory;
  uint64_t bytes;
  int dmabuf = -1;
  uint64_t offset = 0;
};

// One transfer from a registered region of this process to one of the peer's. Each has the key of its registration.
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
  // Registers memory for as long as the link lives; the memory must outlive the link. The NIC reads it at the sender's
  // end, and the peer writes it at the receiver's. Throws std::runtime_error.
  virtual uint32_t Register(const DirectRegion& region) = 0;
};

class DirectSend : public DirectMemory {
 public:
  // Sends these bytes ahead of the message at a position of the LL ring, which is reserved and not published yet: once
  // the receiver finds the message, the bytes are at their destination. The caller must not change them until the peer
  // has said that it has read them.
  virtual void Attach(uint64_t position, const DirectPiece& piece) = 0;
};

}  // namespace jaxring
