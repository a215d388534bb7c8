#include "transport/verbs/verbs_endpoint.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>

#include "transport/verbs/verbs_cm.h"

namespace jaxring::verbs {
namespace {

constexpr uint32_t kOfferVersion = 1;
constexpr uint32_t kInlineBytes = 256;
// Retries if the peer's receive queue is empty. Credits rule that out, so many retries would hide a fault.
constexpr uint8_t kRnrRetries = 6;
constexpr uint8_t kRnrTimer = 12;  // 0.64 ms

const Api* ApiOrThrow() {
  std::string why;
  const Api* api = LoadApi(&why);
  if (api == nullptr) throw std::runtime_error(why);
  return api;
}

std::string Kib(uint64_t bytes) { return std::to_string((bytes + 1023) / 1024) + " KiB"; }

}  // namespace

std::string ToHex(const Offer& offer) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto* bytes = reinterpret_cast<const unsigned char*>(&offer);
  std::string text;
  for (size_t i = 0; i < sizeof offer; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

Offer FromHex(const std::string& text) {
  Offer offer{};
  auto* bytes = reinterpret_cast<unsigned char*>(&offer);
  bool good = text.size() == 2 * sizeof offer;
  for (size_t i = 0; good && i < text.size(); ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    good = digit >= 0;
    bytes[i / 2] = static_cast<unsigned char>(bytes[i / 2] << 4 | digit);
  }
  if (!good || offer.version != kOfferVersion || offer.layer > Layer::kIwarp || offer.queue_pairs < 1 ||
      offer.queue_pairs > kMaxQueuePairs || offer.mtu < 1 || offer.mtu > 5) {
    throw std::runtime_error("the peer's RDMA address cannot be read: does it run the same version of jaxring?");
  }
  offer.gid_type[sizeof offer.gid_type - 1] = offer.cm_address[sizeof offer.cm_address - 1] = 0;
  return offer;
}

Endpoint::Endpoint(EndpointOptions options, Role role, char* memory, size_t bytes)
    : options_(std::move(options)),
      role_(role),
      api_(ApiOrThrow()),
      pd_(nullptr, api_->dealloc_pd),
      memory_(nullptr, api_->dereg_mr),
      notices_(nullptr, api_->dereg_mr),
      channel_(nullptr, api_->destroy_comp_channel),
      cq_(nullptr, api_->destroy_cq) {
  std::random_device random;
  offer_.version = kOfferVersion;
  offer_.queue_pairs = static_cast<uint8_t>(options_.queue_pairs);
  offer_.psn = random() & 0xffffff;
  offer_.token = uint64_t{random()} << 32 | random();
  if (options_.address.empty()) {
    device_ = std::make_unique<OpenDevice>(options_.device);
    context_ = device_->context();
  } else {
    offer_.layer = Layer::kIwarp;
    cm_ = std::make_unique<CmConnector>(this, role_ == Role::kReceiver);
    context_ = cm_->context();
  }
  QueryPort();
  Register(memory, bytes);
  if (!cm_) CreateQueuePairs();
}

std::unique_ptr<Endpoint> Endpoint::Another(EndpointOptions options) const {
  return std::make_unique<Endpoint>(std::move(options), role_, reinterpret_cast<char*>(offer_.memory), offer_.bytes);
}

Endpoint::~Endpoint() {
  if (cm_) cm_->DestroyQueuePairs();
}

std::string Endpoint::Place(int queue_pair) const {
  std::string text = options_.device + " port " + std::to_string(options_.port);
  if (cm_) text += " (" + options_.address + ")";
  if (!cm_ && options_.gid_index >= 0) {
    text += " (GID " + std::to_string(options_.gid_index) + " " + GidText(offer_.gid) + ", " + offer_.gid_type + ")";
  }
  if (!cm_ && options_.gid_index < 0) text += " (LID " + std::to_string(offer_.lid) + ")";
  if (queue_pair >= 0) text += ", queue pair " + std::to_string(qps_[queue_pair]->number);
  return text;
}

void Endpoint::Throw(const std::string& what, int error) const {
  std::string text = Place(-1) + ": " + what + " failed (" + ErrnoText(error) + ")";
  rlimit limit{};
  if ((error == ENOMEM || error == EPERM || error == EAGAIN) && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
      limit.rlim_cur != RLIM_INFINITY) {
    text +=
        "; this process may lock " + Kib(limit.rlim_cur) +
        " of memory (ulimit -l) and needs more: run `ulimit -l unlimited`, set LimitMEMLOCK=infinity in its systemd "
        "unit or memlock in /etc/security/limits.conf, or give the container the capability IPC_LOCK";
  }
  throw std::runtime_error(text);
}

void Endpoint::QueryPort() {
  PortAttributes port{};
  if (int error = api_->query_port(context_, static_cast<uint8_t>(options_.port), &port); error != 0) {
    Throw("asking for the port's state", error);
  }
  if (port.state != kPortActive) {
    throw std::runtime_error(Place(-1) + ": the port is not active: look at the link (`rdma link`, `ip link`)");
  }
  offer_.mtu = static_cast<uint8_t>(std::clamp(port.active_mtu, 1, 5));
  offer_.lid = port.lid;
  if (cm_) return;
  offer_.layer = port.link_layer == kLinkEthernet ? Layer::kRoce : Layer::kInfiniband;
  if (options_.gid_index < 0) return;
  const std::string index = std::to_string(options_.gid_index);
  const int error = api_->query_gid(context_, static_cast<uint8_t>(options_.port), options_.gid_index, &offer_.gid);
  if (error != 0 || std::all_of(offer_.gid.raw, offer_.gid.raw + 16, [](uint8_t byte) { return byte == 0; })) {
    throw std::runtime_error(options_.device + " port " + std::to_string(options_.port) + " has no GID " + index +
                             ": see `jaxring doctor` or `show_gids` for those it has, and set JAXRING_IB_GID_INDEX");
  }
  offer_.has_gid = 1;
  const std::string type = ReadLine(std::string(context_->device->path) + "/ports/" + std::to_string(options_.port) +
                                    "/gid_attrs/types/" + index);
  std::strncpy(offer_.gid_type, type.c_str(), sizeof offer_.gid_type - 1);
}

void Endpoint::Register(char* memory, size_t bytes) {
  pd_.reset(api_->alloc_pd(context_));
  if (!pd_) Throw("making a protection domain", errno);
  memory_.reset(api_->reg_mr(pd_.get(), memory, bytes, AccessOfMemory()));
  if (!memory_) Throw("registering " + Kib(bytes) + " of memory", errno);
  offer_.memory = reinterpret_cast<uint64_t>(memory);
  offer_.bytes = bytes;
  offer_.rkey = memory_->rkey;
  if (cm_) {
    notice_buffer_ = std::make_unique<std::array<uint32_t, (kMaxQueuePairs + 1) * kNotices>>();
    notices_.reset(api_->reg_mr(pd_.get(), notice_buffer_->data(), sizeof *notice_buffer_, kAccessLocalWrite));
    if (!notices_) Throw("registering memory", errno);
  }
  channel_.reset(api_->create_comp_channel(context_));
  if (!channel_) Throw("making a completion channel", errno);
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  const int entries = options_.queue_pairs * static_cast<int>(kSendQueue + kNotices);
  cq_.reset(api_->create_cq(context_, entries, nullptr, channel_.get(), 0));
  if (!cq_) Throw("making a completion queue of " + std::to_string(entries) + " entries", errno);
}

uint32_t Endpoint::RegisterMore(const DirectRegion& region) {
  Handle<Mr> made(nullptr, api_->dereg_mr);
  const std::string what = "registering " + Kib(region.bytes) + " of memory";
  if (region.dmabuf < 0) {
    made.reset(api_->reg_mr(pd_.get(), region.memory, region.bytes, AccessOfMemory()));
    if (!made) Throw(what, errno);
  } else {
    if (api_->reg_dmabuf_mr == nullptr) Throw(what + " as a dma-buf (which rdma-core 34 and later can)", ENOSYS);
    // The registration uses the memory's own addresses, not offsets from 0.
    const auto at = reinterpret_cast<uint64_t>(region.memory);
    made.reset(api_->reg_dmabuf_mr(pd_.get(), region.offset, region.bytes, at, region.dmabuf, AccessOfMemory()));
    if (!made) Throw(what + " as a dma-buf", errno);
  }
  const uint32_t key = role_ == Role::kReceiver ? made->rkey : made->lkey;
  MutexLock lock(more_mutex_);
  more_.push_back(std::move(made));
  return key;
}

QpInit Endpoint::Init() const {
  QpInit init{};
  init.send_cq = init.receive_cq = cq_.get();
  init.capabilities = {kSendQueue, kNotices, 1, 1, kInlineBytes};
  init.type = kQpReliable;
  return init;
}

void Endpoint::CreateQueuePairs() {
  for (int i = 0; i < options_.queue_pairs; ++i) {
    QpInit init = Init();
    Qp* qp = api_->create_qp(pd_.get(), &init);
    if (qp == nullptr) {  // the device may not do that much inline, or none
      init = Init();
      init.capabilities.max_inline = 0;
      qp = api_->create_qp(pd_.get(), &init);
    }
    if (qp == nullptr) Throw("making a queue pair", errno);
    owned_qps_.emplace_back(qp, api_->destroy_qp);
    qps_.push_back(qp);
    max_inline_ = init.capabilities.max_inline;
    offer_.qpn[i] = qp->number;
    QpAttributes attributes{};
    attributes.state = kInit;
    attributes.port = static_cast<uint8_t>(options_.port);
    attributes.access = role_ == Role::kReceiver ? kAccessRemoteWrite : 0;
    const int error = api_->modify_qp(qp, &attributes, kMaskState | kMaskPkeyIndex | kMaskPort | kMaskAccess);
    if (error != 0) Throw("initialising a queue pair", error);
    PostReceives(i);
  }
}

void Endpoint::CheckPeer(const Offer& peer) const {
  static constexpr const char* kLayers[] = {"InfiniBand", "RoCE", "iWARP"};
  auto differ = [this](const std::string& what, const std::string& mend) {
    throw std::runtime_error(Place(-1) + " cannot talk to the peer's device: " + what + ": " + mend);
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
  for (int i = 0; !cm_ && i < options_.queue_pairs; ++i) Connect(i);
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
  to.address.port = static_cast<uint8_t>(options_.port);
  to.address.dlid = peer_.lid;
  if (offer_.has_gid) {
    to.address.is_global = 1;
    to.address.dgid = peer_.gid;
    to.address.sgid_index = static_cast<uint8_t>(options_.gid_index);
    to.address.hop_limit = 64;
  }
  int error = api_->modify_qp(qps_[queue_pair], &to,
                              kMaskState | kMaskAddress | kMaskPathMtu | kMaskDestQpn | kMaskReceivePsn |
                                  kMaskDestReadAtomics | kMaskMinRnrTimer);
  if (error != 0) {
    const std::string peer = offer_.has_gid ? "GID " + GidText(peer_.gid) : "LID " + std::to_string(peer_.lid);
    Throw("connecting to the peer at " + peer + " (is there a route between the two? JAXRING_IB_GID_INDEX and " +
              "JAXRING_IB_HCA choose others)",
          error);
  }
  QpAttributes ready{};
  ready.state = kReadyToSend;
  ready.timeout = static_cast<uint8_t>(options_.timeout);
  ready.retry_count = static_cast<uint8_t>(options_.retry_count);
  ready.rnr_retry = kRnrRetries;
  ready.send_psn = offer_.psn;
  error =
      api_->modify_qp(qps_[queue_pair], &ready,
                      kMaskState | kMaskTimeout | kMaskRetryCount | kMaskRnrRetry | kMaskSendPsn | kMaskReadAtomics);
  if (error != 0) Throw("readying a queue pair", error);
}

}  // namespace jaxring::verbs
