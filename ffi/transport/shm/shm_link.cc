#include "transport/shm/shm_link.h"

#include <utility>

namespace jaxring {

std::shared_ptr<SendLink> MakeShmSendLink(uint32_t slot_bytes) {
  return std::make_shared<SendLink>("shm", LinkMemory::Shared(slot_bytes), nullptr);
}

std::shared_ptr<RecvLink> OpenShmRecvLink(const std::string& ring_path, const std::string& blocks_path,
                                          const std::string& bell_path, uint32_t slot_bytes) {
  auto doorbell = Doorbell::Open(bell_path);
  auto link = std::make_shared<RecvLink>("shm", LinkMemory::Open(ring_path, slot_bytes), doorbell.get());
  link->Map(BlockPool::Open(blocks_path, slot_bytes));
  link->notifier = std::move(doorbell);
  return link;
}

}  // namespace jaxring
