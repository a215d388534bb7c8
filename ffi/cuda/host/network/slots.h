// The slots of a connection with a network peer: where they lie, and who moves their bytes.
//
// Where the link is by RDMA the NIC reads the sender's slots and writes the receiver's, and the link's messages only
// say so. Then they lie in the GPU's memory if the NIC can address it (GPUDirect RDMA) and is near enough, else in
// pinned memory. Where another transport carries the bytes they lie in pinned memory, and go through the link's own
// slots.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/host/gpu/gpu.h"
#include "transport/core/link.h"

namespace jaxring::cuda {

class Slots {
 public:
  // `bytes` of zeros for each direction, for kernels of `device`; they stay until the process ends. `link`: the one to
  // the peer, nullptr for a rank of this process. `counts`: see ProxySpec. `why_pinned`: what speaks against the GPU's
  // memory, "" where nothing does. Throws GpuError, and std::runtime_error where the NIC takes no memory at all.
  Slots(Gpu& gpu, int device, uint64_t bytes, const SendLink* link, bool counts, std::string why_pinned);
  ~Slots();
  Slots(const Slots&) = delete;

  // What is sent stands in the first half, and what comes in the second, which alone the peer may write.
  char* sent() const { return memory_; }
  char* received() const { return memory_ + half_; }
  // By whom its bytes move, for people: "GPU memory as a dma-buf, by mlx5_0".
  const std::string& description() const { return description_; }
  // Whether the NIC moves them by itself; then the key of what is sent.
  bool direct() const { return direct_; }
  uint32_t key() const { return key_; }
  bool on_gpu() const { return on_gpu_; }
  // The key by which the peer may write here, once for all lanes. Throws std::runtime_error.
  uint32_t Invite(DirectMemory& receiver);
  // What NICs wrote here is seen by kernels that learn of it after this.
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
