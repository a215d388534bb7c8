#include "transport/core/link.h"

namespace jaxring {
namespace {

size_t PageRound(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
size_t TotalBytes(uint32_t slot_bytes) {
  return PageRound(LLShape().bytes()) + PageRound(SimpleShape(slot_bytes).bytes());
}

}  // namespace

LinkMemory LinkMemory::Anonymous(uint32_t slot_bytes) {
  return {SharedMemory::Anonymous(TotalBytes(slot_bytes), "slots of a link"), slot_bytes};
}

LinkMemory LinkMemory::Shared(uint32_t slot_bytes) {
  return {SharedMemory::Create(TotalBytes(slot_bytes), "slots of a link"), slot_bytes};
}

LinkMemory LinkMemory::Open(const std::string& path, uint32_t slot_bytes) {
  return {SharedMemory::Open(path, TotalBytes(slot_bytes), "slots of a link"), slot_bytes};
}

RingMemory LinkMemory::ring(Protocol protocol) const {
  if (protocol == Protocol::kLL) return {memory_.data(), ll_};
  return {memory_.data() + PageRound(ll_.bytes()), simple_};
}

}  // namespace jaxring
