// How two processes set an RDMA link up.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "transport/core/offered.h"
#include "transport/verbs/verbs.h"

namespace jaxring {

// The fields of `place` as an endpoint's options. Throws std::invalid_argument where a number is none.
verbs::EndpointOptions VerbsOptions(const OfferedTransport::Place& place);

// Sets RDMA links up, from the offer to a peer to the finished link.
class VerbsJoin final : public OfferedTransport {
 public:
  explicit VerbsJoin(const OfferedOptions& options)
      : slot_bytes_(options.slot_bytes), own_doorbell_(options.own_doorbell), busy_pollers_(options.busy_pollers) {}
  // `place` has the fields of verbs::EndpointOptions.
  std::string Offer(int peer, int channel, bool sending, const Place& place) override;
  void Prepare(int peer, int channel, bool sending, const std::string& peer_offer) override;
  JoinedLink Finish(Poller* poller, int peer, int channel, bool sending, int fd, double timeout_s,
                    OnEnd on_end) override;
  // Calls CheckPort for every link in service.
  void CheckPorts() override;

 private:
  void Forget(int peer, int channel, bool sending);
  struct Pending {
    std::shared_ptr<SendLink> send;
    std::shared_ptr<RecvLink> recv;
    std::unique_ptr<verbs::Endpoint> endpoint;  // after the links, whose memory it uses
  };
  using Key = std::tuple<int, int, bool>;
  std::shared_ptr<Pending> Find(const Key& key);

  uint32_t slot_bytes_;
  Notifier* own_doorbell_;
  BusyPollers* const busy_pollers_;
  Mutex mutex_;
  std::vector<std::weak_ptr<VerbsPump>> in_service_ JAXRING_GUARDED_BY(mutex_);
  std::map<Key, std::shared_ptr<Pending>> pending_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
