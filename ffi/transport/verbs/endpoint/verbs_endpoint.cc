#include "transport/verbs/endpoint/verbs_endpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>

#include "transport/verbs/endpoint/verbs_cm.h"

namespace jaxring::verbs {
namespace {

constexpr uint32_t kInlineBytes = 256;
// Retries if the peer's receive queue is empty. Credits rule that out, so many retries would hide a fault.
constexpr uint8_t kRnrRetries = 6;
constexpr uint8_t kRnrTimer = 12;  // 0.64 ms

}  // namespace

Endpoint::Endpoint(EndpointOptions options, Role role, char* memory, size_t bytes)
    : port_(std::move(options)),
      role_(role),
      channel_(nullptr, port_.api()->destroy_comp_channel),
      cq_(nullptr, port_.api()->destroy_cq) {
  std::random_device random;
  offer_.version = kOfferVersion;
  offer_.queue_pairs = static_cast<uint8_t>(port_.options().queue_pairs);
  offer_.psn = random() & 0xffffff;
  offer_.token = uint64_t{random()} << 32 | random();
  if (port_.iwarp()) {
    cm_ = std::make_unique<CmConnector>(this, role_ == Role::kReceiver);
    port_.set_context(cm_->context());
  }
  port_.Query(&offer_);
  memory_.emplace(port_, role_ == Role::kReceiver, memory, bytes);
  offer_.memory = reinterpret_cast<uint64_t>(memory);
  offer_.bytes = bytes;
  offer_.rkey = memory_->rkey();
  if (cm_) notices_ = std::make_unique<NoticeBuffers>(port_, memory_->pd());
  MakeCompletionQueue();
  if (!cm_) CreateQueuePairs();
}

std::unique_ptr<Endpoint> Endpoint::Another(EndpointOptions options) const {
  return std::make_unique<Endpoint>(std::move(options), role_, reinterpret_cast<char*>(offer_.memory), offer_.bytes);
}

Endpoint::~Endpoint() {
  if (cm_) cm_->DestroyQueuePairs();
}

std::string Endpoint::Place(int queue_pair) const {
  return port_.words() + ", queue pair " + std::to_string(qps_[queue_pair]->number);
}

void Endpoint::MakeCompletionQueue() {
  channel_.reset(port_.api()->create_comp_channel(port_.context()));
  if (!channel_) port_.Throw("making a completion channel", errno);
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  const int entries = port_.options().queue_pairs * static_cast<int>(kSendQueue + kNotices);
  cq_.reset(port_.api()->create_cq(port_.context(), entries, nullptr, channel_.get(), 0));
  if (!cq_) port_.Throw("making a completion queue of " + std::to_string(entries) + " entries", errno);
}

QpInit Endpoint::Init() const {
  QpInit init{};
  init.send_cq = init.receive_cq = cq_.get();
  init.capabilities = {kSendQueue, kNotices, 1, 1, kInlineBytes};
  init.type = kQpReliable;
  return init;
}

void Endpoint::CreateQueuePairs() {
  for (int i = 0; i < port_.options().queue_pairs; ++i) {
    QpInit init = Init();
    Qp* qp = port_.api()->create_qp(memory_->pd(), &init);
    if (qp == nullptr) {  // the device may not do that much inline, or none
      init = Init();
      init.capabilities.max_inline = 0;
      qp = port_.api()->create_qp(memory_->pd(), &init);
    }
    if (qp == nullptr) port_.Throw("making a queue pair", errno);
    owned_qps_.emplace_back(qp, port_.api()->destroy_qp);
    qps_.push_back(qp);
    max_inline_ = init.capabilities.max_inline;
    offer_.qpn[i] = qp->number;
    QpAttributes attributes{};
    attributes.state = kInit;
    attributes.port = static_cast<uint8_t>(port_.options().port);
    attributes.access = role_ == Role::kReceiver ? kAccessRemoteWrite : 0;
    const int error = port_.api()->modify_qp(qp, &attributes, kMaskState | kMaskPkeyIndex | kMaskPort | kMaskAccess);
    if (error != 0) port_.Throw("initialising a queue pair", error);
    PostReceives(i);
  }
}

void Endpoint::CheckPeer(const Offer& peer) const {
  static constexpr const char* kLayers[] = {"InfiniBand", "RoCE", "iWARP"};
  auto differ = [this](const std::string& what, const std::string& mend) {
    throw std::runtime_error(port_.words() + " cannot talk to the peer's device: " + what + ": " + mend);
  };
  if (peer.layer != offer_.layer) {
    differ(std::string("ours is ") + kLayers[int(offer_.layer)] + ", the peer's " + kLayers[int(peer.layer)],
           "choose devices of one kind with JAXRING_IB_HCA");
  }
  if (std::strcmp(peer.gid_type, offer_.gid_type) != 0 || peer.has_gid != offer_.has_gid) {
    differ(std::string("our GID is of type '") + offer_.gid_type + "', the peer's of type '" + peer.gid_type + "'",
           "set JAXRING_IB_GID_INDEX on each host to GIDs of one type");
  }
  if (peer.queue_pairs != offer_.queue_pairs) {
    differ("the numbers of queue pairs differ", "set JAXRING_IB_QPS_PER_CONNECTION to the same on all ranks");
  }
  if (peer.bytes != offer_.bytes) {
    differ("the rings have different sizes", "set JAXRING_BUFFSIZE to the same on all ranks");
  }
}

void Endpoint::Prepare(const Offer& peer) {
  CheckPeer(peer);
  peer_ = peer;
  for (int i = 0; !cm_ && i < port_.options().queue_pairs; ++i) Connect(i);
}

void Endpoint::Finish(double timeout_s) {
  if (cm_) cm_->Connect(timeout_s);
}

void Endpoint::Connect(int queue_pair) {
  QpAttributes to{};
  to.state = kReadyToReceive;
  to.path_mtu = std::min(offer_.mtu, peer_.mtu);
  to.dest_qpn = peer_.qpn[queue_pair];
  to.receive_psn = peer_.psn;
  to.min_rnr_timer = kRnrTimer;
  to.address.port = static_cast<uint8_t>(port_.options().port);
  to.address.dlid = peer_.lid;
  if (offer_.has_gid) {
    to.address.is_global = 1;
    to.address.dgid = peer_.gid;
    to.address.sgid_index = static_cast<uint8_t>(port_.options().gid_index);
    to.address.hop_limit = 64;
  }
  int error = port_.api()->modify_qp(qps_[queue_pair], &to,
                                     kMaskState | kMaskAddress | kMaskPathMtu | kMaskDestQpn | kMaskReceivePsn |
                                         kMaskDestReadAtomics | kMaskMinRnrTimer);
  if (error != 0) {
    const std::string peer = offer_.has_gid ? "GID " + GidText(peer_.gid) : "LID " + std::to_string(peer_.lid);
    port_.Throw("connecting to the peer at " + peer + " (is there a route between the two? JAXRING_IB_GID_INDEX and " +
                    "JAXRING_IB_HCA choose others)",
                error);
  }
  QpAttributes ready{};
  ready.state = kReadyToSend;
  ready.timeout = static_cast<uint8_t>(port_.options().timeout);
  ready.retry_count = static_cast<uint8_t>(port_.options().retry_count);
  ready.rnr_retry = kRnrRetries;
  ready.send_psn = offer_.psn;
  error = port_.api()->modify_qp(
      qps_[queue_pair], &ready,
      kMaskState | kMaskTimeout | kMaskRetryCount | kMaskRnrRetry | kMaskSendPsn | kMaskReadAtomics);
  if (error != 0) port_.Throw("readying a queue pair", error);
}

}  // namespace jaxring::verbs
