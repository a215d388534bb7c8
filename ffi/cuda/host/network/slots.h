// The slots of a connection with a network peer: in which memory they are, and what moves their bytes.
//
// Over an RDMA link the NIC reads the sender's slots and writes the receiver's, and the link's messages only announce
// this. The slots are then in the GPU's memory if the NIC can address it (GPUDirect RDMA) and is near enough, else in
// pinned memory. Over any other transport they are in pinned memory, and their bytes go through the link's own slots.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/host/gpu/gpu.h"
#include "transport/core/link.h"

namespace jaxring::cuda {

class Slots {
 public:
  // Allocates `bytes` of zeros for each direction, for kernels of `device`, until the process ends. `link`: the link to
  // the peer, nullptr for a rank of this process. `counts`: see ProxySpec. `why_pinned`: why the GPU's memory must not
  // be used, or "". Throws GpuError, and std::runtime_error if the NIC cannot register the memory.
  Slots(Gpu& gpu, int device, uint64_t bytes, const SendLink* link, bool counts, std::string why_pinned);
  ~Slots();
  Slots(const Slots&) = delete;

  // Sent slots are in the first half, received slots in the second, which alone the peer may write.
  char* sent() const { return memory_; }
  char* received() const { return memory_ + half_; }
  // What moves the bytes, for logs: "GPU memory as a dma-buf, by mlx5_0".
  const std::string& description() const { return description_; }
  // Whether the NIC moves the bytes without the host, and then the key of the sent half.
  bool direct() const { return direct_; }
  uint32_t key() const { return key_; }
  bool on_gpu() const { return on_gpu_; }
  // The key by which the peer may write the received half, made once for all lanes. Throws std::runtime_error.
  uint32_t Invite(DirectMemory& receiver);
  // Makes the NIC's writes visible to kernels that learn of them afterwards.
  void Flush();

 private:
  std::string PlaceOnGpu(DirectMemory& sender);

  Gpu& gpu_;
  const int device_;
  const uint64_t half_;
  char* memory_ = nullptr;
  int dmabuf_ = -1;
  bool on_gpu_ = false, direct_ = false;
  uint32_t key_ = 0;
  std::optional<uint32_t> invitation_;
  std::string description_;
};

}  // namespace jaxring::cuda
