// The protocols by which messages travel, as host and kernels number them. jaxring/plan/protocols.py has their records.
#pragma once

#include <cstdint>

namespace jaxring::cuda {

// How a message is laid out in its slot. Chunks in the memory of peers (Peer::kMemory) are read and written in place
// under every protocol; a schedule without messages uses kSimple.
enum class Protocol : uint8_t {
  kSimple = 0,  // bytes as they are; counters say how many messages are there
  kLL = 1,      // 16-byte lines of data, flag, data, flag: needs 8-byte stores to arrive whole
  // 128-byte lines of 120 bytes data and a flag: needs 128-byte stores to arrive whole (NVLink, own memory)
  kLL128 = 2,
};
inline constexpr int kProtocols = 3;

// Whether its messages can go over the network, which brings no line whole.
constexpr bool GoesOverNetwork(Protocol protocol) { return protocol != Protocol::kLL128; }
// Whether there are kernels of it that apply an epilogue, and some that copy their launch's buffers.
constexpr bool HasFurtherKernels(Protocol protocol) {
  return protocol == Protocol::kSimple || protocol == Protocol::kLL;
}

}  // namespace jaxring::cuda
