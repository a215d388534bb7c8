#include "transport/shm/shm_connector.h"

#include <unistd.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace jaxring {

class ShmConnector::Offered final : public OfferedLink {
 public:
  Offered(ShmConnector* connector, const LinkName& link) : connector_(connector), link_(link) {
    offer_ = std::to_string(getpid()) + " " + std::to_string(connector->own_doorbell_->fd());
    if (!link.sending) return;
    send_ = connector->Ring(link);
    blocks_ = connector->Blocks();
    for (int fd : {send_->memory.fd(), blocks_->fd()}) offer_.append(" ").append(std::to_string(fd));
  }

  void Prepare(const std::string& peer_offer) override {
    std::istringstream words(peer_offer);
    int pid = 0;
    words >> pid;
    const auto next = [&] {
      int fd = -1;
      if (!(words >> fd)) throw std::runtime_error("the peer's offer of shared memory cannot be read");
      return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
    };
    doorbell_ = Doorbell::Open(next());
    if (link_.sending) return;
    recv_ = std::make_shared<RecvLink>(kShm, LinkMemory::Open(next(), connector_->slot_bytes_), doorbell_.get());
    recv_->Map(SharedBlockPool::Open(next(), connector_->slot_bytes_));
  }

  JoinedLink Finish(Agreed) override {
    if (!doorbell_) throw std::runtime_error("the peer's offer is not known");
    JoinedLink joined;
    if (link_.sending) {
      connector_->ForgetRing(link_);
      send_->ll.set_on_publish(doorbell_.get());
      send_->simple.set_on_publish(doorbell_.get());
      send_->doorbell = doorbell_.get();
      send_->notifier = std::move(doorbell_);
      send_->shared_blocks = blocks_;
      joined.send = std::move(send_);
    } else {
      recv_->notifier = std::move(doorbell_);
      joined.recv = std::move(recv_);
    }
    return joined;
  }

 private:
  ShmConnector* const connector_;
  const LinkName link_;
  std::shared_ptr<SendLink> send_;
  std::shared_ptr<RecvLink> recv_;
  std::shared_ptr<SharedBlockPool> blocks_;
  std::unique_ptr<Doorbell> doorbell_;  // the peer's
};

std::unique_ptr<OfferedLink> ShmConnector::Offer(const LinkName& link, const Place&) {
  return std::make_unique<Offered>(this, link);
}

std::shared_ptr<SendLink> ShmConnector::Ring(const LinkName& link) {
  MutexLock lock(mutex_);
  std::shared_ptr<SendLink>& ring = rings_[link];
  if (!ring) ring = std::make_shared<SendLink>(kShm, LinkMemory::Shared(slot_bytes_), nullptr);
  return ring;
}

void ShmConnector::ForgetRing(const LinkName& link) {
  MutexLock lock(mutex_);
  rings_.erase(link);
}

std::shared_ptr<SharedBlockPool> ShmConnector::Blocks() {
  MutexLock lock(mutex_);
  if (!blocks_) blocks_ = std::make_shared<SharedBlockPool>(SharedBlockPool::Create(slot_bytes_));
  return blocks_;
}

void ShmConnector::Clear() {
  MutexLock lock(mutex_);
  rings_.clear();
  blocks_.reset();
}

std::unique_ptr<Connector> MakeShmConnector(const ConnectorOptions& options) {
  return std::make_unique<ShmConnector>(options);
}

}  // namespace jaxring
