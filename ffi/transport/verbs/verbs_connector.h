// How two processes set an RDMA link up.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/core/connector.h"
#include "transport/verbs/verbs.h"

namespace jaxring {

// The pumps close their links at the peer's goodbye.
inline constexpr Transport kVerbs{.name = "verbs"};

std::unique_ptr<Connector> MakeVerbsConnector(const ConnectorOptions& options);

// The fields of `place` as an endpoint's options. Throws std::invalid_argument where a number is none.
verbs::EndpointOptions VerbsOptions(const Connector::Place& place);

class VerbsConnector final : public Connector {
 public:
  explicit VerbsConnector(const ConnectorOptions& options)
      : slot_bytes_(options.slot_bytes), own_doorbell_(options.own_doorbell), busy_pollers_(options.busy_pollers) {}
  const Transport& transport() const override { return kVerbs; }
  // `place` has the fields of verbs::EndpointOptions.
  std::unique_ptr<OfferedLink> Offer(const LinkName& link, const Place& place) override;
  // Calls CheckPort for every link in service.
  void CheckPorts() override;

 private:
  class Offered;

  const uint32_t slot_bytes_;
  Notifier* const own_doorbell_;
  BusyPollers* const busy_pollers_;
  Mutex mutex_;
  std::vector<std::weak_ptr<VerbsPump>> in_service_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
