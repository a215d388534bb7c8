#include "transport/verbs_endpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>

#include "transport/verbs_cm.h"

namespace jaxring::verbs {
namespace {

constexpr uint32_t kOfferVersion = 1;
constexpr uint32_t kInlineBytes = 256;
// Retries where the peer's receive queue is empty. Credits rule that out, so more than a few would hide a fault.
constexpr uint8_t kRnrRetries = 6;
constexpr uint8_t kRnrTimer = 12;  // 0.64 ms
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
constexpr int kQueuePairShift = 48;
constexpr uint64_t kNoticeOnly = (uint64_t{1} << kQueuePairShift) - 1;  // a send's id that nobody waits for

const Api* Loaded() {
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
      api_(Loaded()),
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
  // The receiver's memory is written by the peer, the sender's only read by the device.
  const int access = role_ == Role::kReceiver ? kAccessLocalWrite | kAccessRemoteWrite : kAccessLocalWrite;
  memory_.reset(api_->reg_mr(pd_.get(), memory, bytes, access));
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

void Endpoint::PostReceives(int queue_pair) {
  for (uint32_t slot = 0; slot < kNotices; ++slot) {
    if (!PostReceive(queue_pair, slot)) throw std::runtime_error(error_);
  }
}

bool Endpoint::PostReceive(int queue_pair, uint32_t slot) {
  Sge sge{};
  ReceiveWork work{}, *bad = nullptr;
  work.id = kReceiveBit | uint64_t(queue_pair) << kQueuePairShift | slot;
  if (cm_) {
    uint32_t* word = notice_buffer_->data() + queue_pair * kNotices + slot;
    sge = {reinterpret_cast<uint64_t>(word), sizeof *word, notices_->lkey};
    work.sges = &sge;
    work.sge_count = 1;
  }
  const int error = context_->post_receive(qps_[queue_pair], &work, &bad);
  if (error == 0) return true;
  Fail(Place(queue_pair) + ": posting a receive failed (" + ErrnoText(error) + ")");
  return false;
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

bool Endpoint::Post(int queue_pair, SendWork* work) {
  SendWork* bad = nullptr;
  const int error = context_->post_send(qps_[queue_pair], work, &bad);
  if (error == 0) return true;
  Fail(Place(queue_pair) + ": posting a write failed (" + ErrnoText(error) + ")");
  return false;
}

bool Endpoint::Write(int queue_pair, const char* data, uint32_t bytes, uint32_t notice, uint64_t id, bool signaled) {
  Sge sge{reinterpret_cast<uint64_t>(data), bytes, memory_->lkey};
  SendWork write{};
  write.id = uint64_t(queue_pair) << kQueuePairShift | id;
  write.sges = &sge;
  write.sge_count = 1;
  write.remote_address = peer_.memory + (sge.address - offer_.memory);
  write.rkey = peer_.rkey;
  if (bytes <= max_inline_) write.flags |= kInline;
  const unsigned flags = signaled ? unsigned(kSignaled) : 0;
  if (!cm_) {
    write.opcode = kWriteWithImm;
    write.imm = htonl(notice);
    write.flags |= flags;
    return Post(queue_pair, &write);
  }
  write.opcode = kWrite;
  Sge word{};
  SendWork tell{};
  PrepareNotice(&tell, &word, notice);
  tell.id = write.id;
  tell.flags |= flags;
  write.next = &tell;
  return Post(queue_pair, &write);
}

void Endpoint::PrepareNotice(SendWork* work, Sge* sge, uint32_t notice) {
  // There are never more under way than the ring has entries, so none is overwritten before it has gone.
  uint32_t* word = notice_buffer_->data() + kMaxQueuePairs * kNotices + next_notice_++ % kNotices;
  *word = notice;
  *sge = {reinterpret_cast<uint64_t>(word), sizeof *word, notices_->lkey};
  work->sges = sge;
  work->sge_count = 1;
  work->opcode = kSend;
  if (max_inline_ >= sizeof *word) work->flags |= kInline;
}

bool Endpoint::Notify(int queue_pair, uint32_t notice) {
  Sge word{};
  SendWork work{};
  if (cm_) {
    PrepareNotice(&work, &word, notice);
  } else {
    work.opcode = kSendWithImm;
    work.imm = htonl(notice);
  }
  work.id = uint64_t(queue_pair) << kQueuePairShift | kNoticeOnly;
  work.flags |= kSignaled;
  return Post(queue_pair, &work);
}

bool Endpoint::Mark(int queue_pair, uint64_t id) {
  SendWork work{};
  work.id = uint64_t(queue_pair) << kQueuePairShift | id;
  work.opcode = kWrite;
  work.flags = kSignaled;
  work.remote_address = peer_.memory;
  work.rkey = peer_.rkey;
  return Post(queue_pair, &work);
}

bool Endpoint::Poll(std::vector<Event>* events) {
  std::array<Completion, 16> completions;
  while (error_.empty()) {
    const int n = context_->poll_cq(cq_.get(), static_cast<int>(completions.size()), completions.data());
    if (n < 0) Fail(Place(-1) + ": polling the completion queue failed");
    if (n <= 0) break;
    for (int i = 0; i < n && error_.empty(); ++i) {
      const Completion& completion = completions[i];
      const bool receive = completion.id & kReceiveBit;
      const int queue_pair = static_cast<int>((completion.id & ~kReceiveBit) >> kQueuePairShift);
      if (completion.status != kSuccess) {
        closed_by_peer_ = completion.status == kFlushed;
        Fail(Place(queue_pair) + ": " + StatusText(completion));
        break;
      }
      if (!receive) {
        events->push_back({false, queue_pair, completion.id & kNoticeOnly});
        continue;
      }
      const uint32_t slot = static_cast<uint32_t>(completion.id & kNoticeOnly);
      const uint32_t notice = cm_ ? (*notice_buffer_)[queue_pair * kNotices + slot] : ntohl(completion.imm);
      events->push_back({true, queue_pair, notice});
      // Given back before whoever sent it can know that there is room for another.
      if (!PostReceive(queue_pair, slot)) break;
    }
  }
  return error_.empty();
}

bool Endpoint::Arm() {
  Cq* cq;
  void* user;
  while (api_->get_cq_event(channel_.get(), &cq, &user) == 0) api_->ack_cq_events(cq, 1);
  if (context_->request_notify(cq_.get(), 0) == 0) return true;
  Fail(Place(-1) + ": asking for completion events failed");
  return false;
}

void Endpoint::Fail(const std::string& what) {
  if (error_.empty()) error_ = what;
}

bool Endpoint::PortActive() const {
  PortAttributes port{};
  return api_->query_port(context_, static_cast<uint8_t>(options_.port), &port) != 0 || port.state == kPortActive;
}

std::chrono::microseconds Endpoint::Patience() const {
  return std::chrono::microseconds((int64_t{1} << options_.timeout) * 4096 / 1000 * (options_.retry_count + 1));
}

void Endpoint::FailForPort() {
  Fail(Place(0) + ": the port is down, and what was sent has not arrived for longer than JAXRING_IB_TIMEOUT and " +
       "JAXRING_IB_RETRY_CNT allow; look at the link (`rdma link`, `ip link`)");
}

std::string Endpoint::StatusText(const Completion& completion) const {
  std::string text = std::string(api_->wc_status_str(completion.status)) + " (status " +
                     std::to_string(completion.status) + ", vendor's " + std::to_string(completion.vendor_error) + ")";
  if (!PortActive()) return text + ": the port is down; look at the link (`rdma link`, `ip link`)";
  switch (completion.status) {
    case kRetryExceeded:
      return text + ": the peer's device does not answer; look at its link and process, or raise JAXRING_IB_TIMEOUT " +
             "and JAXRING_IB_RETRY_CNT";
    case kRnrRetryExceeded:
      return text + ": the peer's receive queue was full, which credits should prevent; this is a fault of jaxring";
    case kFlushed:
      return text + ": the connection was closed";
    default:
      return text + ": look at both hosts' kernel logs for the device";
  }
}

std::string Endpoint::Describe() const {
  static constexpr int kSmallestMtu = 128;
  std::string numbers;
  for (int i = 0; i < options_.queue_pairs; ++i) {
    numbers += (i == 0 ? "" : ", ") + std::to_string(qps_[i]->number);
    if (!cm_) numbers += " to " + std::to_string(peer_.qpn[i]);
  }
  const std::string peer = cm_              ? std::string("the peer")
                           : offer_.has_gid ? "GID " + GidText(peer_.gid)
                                            : "LID " + std::to_string(peer_.lid);
  return Place(-1) + " to " + peer + ", MTU " + std::to_string(kSmallestMtu << std::min(offer_.mtu, peer_.mtu)) +
         ", queue pairs " + numbers;
}

}  // namespace jaxring::verbs
