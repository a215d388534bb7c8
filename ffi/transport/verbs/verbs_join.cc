// How two processes set an RDMA link up: offers, preparation at both ends, and the link's pumps.
#include "transport/verbs/verbs_join.h"

#include <unistd.h>

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

int Number(const OfferedTransport::Place& place, const std::string& name, int otherwise) {
  const auto it = place.find(name);
  return it == place.end() ? otherwise : std::stoi(it->second);
}

}  // namespace

verbs::EndpointOptions VerbsOptions(const OfferedTransport::Place& place) {
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

std::string VerbsJoin::Offer(int peer, int channel, bool sending, const Place& place) {
  verbs::EndpointOptions options = VerbsOptions(place);
  Forget(peer, channel, sending);
  auto pending = std::make_shared<Pending>();
  auto notifier = std::make_unique<VerbsNotifier>();
  if (sending) {
    pending->send = std::make_shared<SendLink>("verbs", LinkMemory::Anonymous(slot_bytes_), notifier.get());
    pending->send->notifier = std::move(notifier);
  } else {
    pending->recv = std::make_shared<RecvLink>("verbs", LinkMemory::Anonymous(slot_bytes_), notifier.get());
    pending->recv->notifier = std::move(notifier);
  }
  LinkMemory& memory = sending ? pending->send->memory : pending->recv->memory;
  using Role = verbs::Endpoint::Role;
  pending->endpoint = std::make_unique<verbs::Endpoint>(std::move(options), sending ? Role::kSender : Role::kReceiver,
                                                        memory.data(), memory.bytes());
  std::string offer = verbs::ToHex(pending->endpoint->offer());
  MutexLock lock(mutex_);
  pending_[{peer, channel, sending}] = std::move(pending);
  return offer;
}

std::shared_ptr<VerbsJoin::Pending> VerbsJoin::Find(const Key& key) {
  MutexLock lock(mutex_);
  auto it = pending_.find(key);
  if (it == pending_.end()) throw std::runtime_error("no RDMA link to that process is being set up");
  return it->second;
}

void VerbsJoin::Forget(int peer, int channel, bool sending) {
  std::shared_ptr<Pending> old;
  MutexLock lock(mutex_);
  if (auto node = pending_.extract({peer, channel, sending})) old = std::move(node.mapped());
}

void VerbsJoin::Prepare(int peer, int channel, bool sending, const std::string& peer_offer) {
  std::shared_ptr<Pending> pending = Find({peer, channel, sending});
  pending->endpoint->Prepare(verbs::FromHex(peer_offer));
}

void VerbsJoin::CheckPorts() {
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

JoinedLink VerbsJoin::Finish(Poller* poller, int peer, int channel, bool sending, int fd, double timeout_s,
                             OnEnd on_end) {
  std::shared_ptr<Pending> pending;
  try {
    pending = Find({peer, channel, sending});
    Forget(peer, channel, sending);
    pending->endpoint->Finish(timeout_s);
  } catch (...) {
    close(fd);
    throw;
  }
  JoinedLink joined{pending->send, pending->recv, pending->endpoint->Describe(), nullptr, nullptr};
  std::shared_ptr<VerbsPump> pump;
  if (sending) {
    auto made = std::make_shared<VerbsSendPump>(std::move(pending->endpoint), fd, poller, joined.send, own_doorbell_,
                                                busy_pollers_, std::move(on_end));
    joined.send->direct = made;
    pump = std::move(made);
  } else {
    auto made = std::make_shared<VerbsRecvPump>(std::move(pending->endpoint), fd, poller, joined.recv, own_doorbell_,
                                                busy_pollers_, std::move(on_end));
    joined.recv->direct = made;
    joined.recv->must_poll = true;
    pump = std::move(made);
  }
  Notifier* notifier = sending ? joined.send->notifier.get() : joined.recv->notifier.get();
  static_cast<VerbsNotifier*>(notifier)->set_pump(pump);
  pump->Start();
  busy_pollers_->Add(pump);
  {
    MutexLock lock(mutex_);
    in_service_.push_back(pump);
  }
  // iWARP's completions say nothing about what has arrived, so nobody could say what is to be sent again.
  if (!pump->iwarp()) joined.movable = pump;
  joined.say_goodbye = [weak = std::weak_ptr<VerbsPump>(pump)] {
    if (auto live = weak.lock()) live->SayGoodbye();
  };
  return joined;
}

}  // namespace jaxring
