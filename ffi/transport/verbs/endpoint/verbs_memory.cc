#include "transport/verbs/endpoint/verbs_memory.h"

#include <cerrno>
#include <utility>

namespace jaxring::verbs {
namespace {

std::string Registering(uint64_t bytes) {
  return "registering " + std::to_string((bytes + 1023) / 1024) + " KiB of memory";
}

int AccessOf(bool written) { return written ? kAccessLocalWrite | kAccessRemoteWrite : kAccessLocalWrite; }

}  // namespace

Memory::Memory(const Port& port, bool written, char* memory, size_t bytes)
    : port_(port),
      written_(written),
      pd_(port.api()->alloc_pd(port.context()), port.api()->dealloc_pd),
      memory_(nullptr, port.api()->dereg_mr) {
  if (!pd_) port.Throw("making a protection domain", errno);
  memory_.reset(port.api()->reg_mr(pd_.get(), memory, bytes, AccessOf(written)));
  if (!memory_) port.Throw(Registering(bytes), errno);
}

uint32_t Memory::Add(const DirectRegion& region) {
  const Api* api = port_.api();
  Handle<Mr> made(nullptr, api->dereg_mr);
  const std::string what = Registering(region.bytes);
  if (region.dmabuf < 0) {
    made.reset(api->reg_mr(pd_.get(), region.memory, region.bytes, AccessOf(written_)));
    if (!made) port_.Throw(what, errno);
  } else {
    if (api->reg_dmabuf_mr == nullptr) {
      port_.Throw(what + " as a dma-buf (which rdma-core 34 and later can)", ENOSYS);
    }
    // The registration uses the memory's own addresses, not offsets from 0.
    const auto at = reinterpret_cast<uint64_t>(region.memory);
    made.reset(api->reg_dmabuf_mr(pd_.get(), region.offset, region.bytes, at, region.dmabuf, AccessOf(written_)));
    if (!made) port_.Throw(what + " as a dma-buf", errno);
  }
  const uint32_t key = written_ ? made->rkey : made->lkey;
  MutexLock lock(more_mutex_);
  more_.push_back(std::move(made));
  return key;
}

NoticeBuffers::NoticeBuffers(const Port& port, Pd* pd)
    : words_(std::make_unique<std::array<uint32_t, (kMaxQueuePairs + 1) * kNotices>>()),
      registered_(port.api()->reg_mr(pd, words_->data(), sizeof *words_, kAccessLocalWrite), port.api()->dereg_mr) {
  if (!registered_) port.Throw("registering memory", errno);
}

}  // namespace jaxring::verbs
