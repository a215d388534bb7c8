// Links within a host: the receiver maps the sender's rings, and each end rings the other process's doorbell. The
// offers name descriptors, which the other process opens by /proc/<pid>/fd; nothing goes over the connection on which
// the two have agreed.
#pragma once

#include <map>
#include <memory>

#include "base/mutex.h"
#include "transport/core/connector.h"

namespace jaxring {

inline constexpr Transport kShm{.name = "shm", .shares_memory = true};

std::unique_ptr<Connector> MakeShmConnector(const ConnectorOptions& options);

class ShmConnector final : public Connector {
 public:
  explicit ShmConnector(const ConnectorOptions& options)
      : slot_bytes_(options.slot_bytes), own_doorbell_(options.own_doorbell) {}

  const Transport& transport() const override { return kShm; }
  std::unique_ptr<OfferedLink> Offer(const LinkName& link, const Place& place) override;
  void Clear() override;

 private:
  class Offered;
  // The ring of a sending end. The next attempt at a link has that of the one before: a peer that is late may still
  // open its descriptor, whose number must not come to stand for another ring.
  std::shared_ptr<SendLink> Ring(const LinkName& link);
  // It is in service.
  void ForgetRing(const LinkName& link);
  // This process's blocks for payloads that go to several processes of the host: made at first use, kept until Clear.
  std::shared_ptr<SharedBlockPool> Blocks();

  const uint32_t slot_bytes_;
  Doorbell* const own_doorbell_;
  Mutex mutex_;
  std::map<LinkName, std::shared_ptr<SendLink>> rings_ JAXRING_GUARDED_BY(mutex_);
  std::shared_ptr<SharedBlockPool> blocks_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
