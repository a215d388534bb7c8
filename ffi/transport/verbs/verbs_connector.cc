// How two processes set an RDMA link up: offers, preparation at both ends, and the link's pumps.
#include "transport/verbs/verbs_connector.h"

#include <stdexcept>
#include <utility>

namespace jaxring {
namespace {

class VerbsNotifier final : public Notifier {
 public:
  void set_pump(std::weak_ptr<VerbsPump> pump) { pump_ = std::move(pump); }
  void Notify() override {
    if (auto pump = pump_.lock()) pump->Pump();
  }
  bool Poll() override {
    auto pump = pump_.lock();
    return pump && pump->Poll();
  }

 private:
  std::weak_ptr<VerbsPump> pump_;
};

int Number(const Connector::Place& place, const std::string& name, int otherwise) {
  const auto it = place.find(name);
  return it == place.end() ? otherwise : std::stoi(it->second);
}

}  // namespace

verbs::EndpointOptions VerbsOptions(const Connector::Place& place) {
  verbs::EndpointOptions options;
  if (const auto it = place.find("device"); it != place.end()) options.device = it->second;
  if (const auto it = place.find("address"); it != place.end()) options.address = it->second;
  options.port = Number(place, "port", options.port);
  options.gid_index = Number(place, "gid_index", options.gid_index);
  options.queue_pairs = Number(place, "queue_pairs", options.queue_pairs);
  options.timeout = Number(place, "timeout", options.timeout);
  options.retry_count = Number(place, "retry_count", options.retry_count);
  return options;
}

class VerbsConnector::Offered final : public OfferedLink {
 public:
  Offered(VerbsConnector* connector, const LinkName& link, const Place& place)
      : connector_(connector), sending_(link.sending) {
    verbs::EndpointOptions options = VerbsOptions(place);
    auto notifier = std::make_unique<VerbsNotifier>();
    LinkMemory memory = LinkMemory::Anonymous(connector->slot_bytes_);
    char* const data = memory.data();
    const size_t bytes = memory.bytes();
    if (sending_) {
      joined_.send = std::make_shared<SendLink>(kVerbs, std::move(memory), notifier.get());
      joined_.send->notifier = std::move(notifier);
    } else {
      joined_.recv = std::make_shared<RecvLink>(kVerbs, std::move(memory), notifier.get());
      joined_.recv->notifier = std::move(notifier);
    }
    using Role = verbs::Endpoint::Role;
    endpoint_ =
        std::make_unique<verbs::Endpoint>(std::move(options), sending_ ? Role::kSender : Role::kReceiver, data, bytes);
    offer_ = verbs::ToHex(endpoint_->offer());
  }

  void Prepare(const std::string& peer_offer) override { endpoint_->Prepare(verbs::FromHex(peer_offer)); }

  JoinedLink Finish(Agreed agreed) override {
    endpoint_->Finish(agreed.timeout_s);
    joined_.description = endpoint_->Describe();
    std::shared_ptr<VerbsPump> pump;
    if (sending_) {
      auto made = std::make_shared<VerbsSendPump>(std::move(endpoint_), std::move(agreed.socket), agreed.poller,
                                                  joined_.send, connector_->own_doorbell_, connector_->busy_pollers_,
                                                  std::move(agreed.on_end));
      joined_.send->direct = made;
      pump = std::move(made);
    } else {
      auto made = std::make_shared<VerbsRecvPump>(std::move(endpoint_), std::move(agreed.socket), agreed.poller,
                                                  joined_.recv, connector_->own_doorbell_, connector_->busy_pollers_,
                                                  std::move(agreed.on_end));
      joined_.recv->direct = made;
      joined_.recv->must_poll = true;
      pump = std::move(made);
    }
    Notifier* notifier = sending_ ? joined_.send->notifier.get() : joined_.recv->notifier.get();
    static_cast<VerbsNotifier*>(notifier)->set_pump(pump);
    pump->Start();
    connector_->busy_pollers_->Add(pump);
    {
      MutexLock lock(connector_->mutex_);
      connector_->in_service_.push_back(pump);
    }
    joined_.movable = pump->movable();
    joined_.say_goodbye = [weak = std::weak_ptr<VerbsPump>(pump)] {
      if (auto live = weak.lock()) live->SayGoodbye();
    };
    return std::move(joined_);
  }

 private:
  VerbsConnector* const connector_;
  const bool sending_;
  JoinedLink joined_;
  std::unique_ptr<verbs::Endpoint> endpoint_;  // after the link, whose memory it uses
};

std::unique_ptr<OfferedLink> VerbsConnector::Offer(const LinkName& link, const Place& place) {
  return std::make_unique<Offered>(this, link, place);
}

void VerbsConnector::CheckPorts() {
  std::vector<std::shared_ptr<VerbsPump>> live;
  {
    MutexLock lock(mutex_);
    std::erase_if(in_service_, [](const auto& pump) { return pump.expired(); });
    for (const auto& pump : in_service_) {
      if (auto kept = pump.lock()) live.push_back(std::move(kept));
    }
  }
  for (const auto& pump : live) pump->CheckPort();
}

std::unique_ptr<Connector> MakeVerbsConnector(const ConnectorOptions& options) {
  return std::make_unique<VerbsConnector>(options);
}

}  // namespace jaxring
