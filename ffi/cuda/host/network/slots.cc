#include "cuda/host/network/slots.h"

#include <unistd.h>

#include <stdexcept>

namespace jaxring::cuda {
namespace {

// Each half begins at a GPU page, so that it can be registered by itself.
constexpr uint64_t kPageBytes = 64 * 1024;

}  // namespace

Slots::Slots(Gpu& gpu, int device, uint64_t bytes, const SendLink* link, bool counts, std::string why_pinned)
    : gpu_(gpu), device_(device), half_((bytes + kPageBytes - 1) / kPageBytes * kPageBytes) {
  const std::shared_ptr<DirectSend> sender = link == nullptr || !counts ? nullptr : link->direct.lock();
  if (sender != nullptr && why_pinned.empty()) why_pinned = PlaceOnGpu(*sender);
  if (on_gpu_) return;
  memory_ = gpu_.memory.AllocatePinned(2 * half_);
  description_ = "pinned memory, copied to " +
                 (link == nullptr ? "ranks of this process" : "the link by " + std::string(link->transport.name));
  if (sender == nullptr) return;
  direct_ = true;
  key_ = sender->Register({memory_, half_});
  description_ = "pinned memory, by " + sender->device() + "; not the GPU's, since " + why_pinned;
}

Slots::~Slots() {
  if (dmabuf_ >= 0) close(dmabuf_);
}

// Returns why the slots cannot be in the GPU's memory, or "".
std::string Slots::PlaceOnGpu(DirectMemory& sender) {
  std::string why = gpu_.direct.WhyNot(device_);
  if (!why.empty()) return why;
  memory_ = gpu_.direct.Allocate(device_, 2 * half_);
  // A dma-buf is the Linux kernel's own mechanism and needs no module besides the driver's. Registration by address
  // works if nvidia-peermem is loaded.
  std::string way = " as a dma-buf";
  try {
    dmabuf_ = gpu_.direct.ExportDmaBuf(device_, memory_, 2 * half_);
    key_ = sender.Register({memory_, half_, dmabuf_});
  } catch (const std::runtime_error& error) {
    why = error.what();
    way = " by nvidia-peermem";
    if (dmabuf_ >= 0) close(dmabuf_);
    dmabuf_ = -1;
    try {
      key_ = sender.Register({memory_, half_});
    } catch (const std::runtime_error& by_address) {
      gpu_.memory.Free(device_, memory_);
      memory_ = nullptr;
      return why + "; " + by_address.what() + ", which needs the kernel module nvidia-peermem";
    }
    way += ", since " + why;
  }
  on_gpu_ = direct_ = true;
  description_ = "GPU memory, by " + sender.device() + way;
  return "";
}

uint32_t Slots::Invite(DirectMemory& receiver) {
  if (!invitation_) invitation_ = receiver.Register({received(), half_, dmabuf_, half_});
  return *invitation_;
}

void Slots::Flush() {
  if (on_gpu_) gpu_.direct.Flush(device_);
}

}  // namespace jaxring::cuda
