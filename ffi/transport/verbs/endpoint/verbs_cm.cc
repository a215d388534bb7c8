#include "transport/verbs/endpoint/verbs_cm.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "transport/verbs/endpoint/verbs_endpoint.h"

namespace jaxring::verbs {
namespace {

constexpr int kResolveMs = 500;

sockaddr_storage Parse(const std::string& address, uint16_t port) {
  sockaddr_storage storage{};
  auto* four = reinterpret_cast<sockaddr_in*>(&storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET, address.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
  } else if (inet_pton(AF_INET6, address.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
  } else {
    throw std::runtime_error("'" + address + "' is not an IP address");
  }
  return storage;
}

sockaddr* Plain(sockaddr_storage* storage) { return reinterpret_cast<sockaddr*>(storage); }

}  // namespace

CmConnector::CmConnector(Endpoint* endpoint, bool listening) : endpoint_(endpoint), listening_(listening) {
  std::string why;
  api_ = LoadCmApi(&why);
  if (api_ == nullptr) throw std::runtime_error(why);
  const EndpointOptions& options = endpoint_->port_.options();
  sockaddr_storage own = Parse(options.address, 0);
  channel_ = api_->create_event_channel();
  if (channel_ == nullptr) Throw("opening /dev/infiniband/rdma_cm (is the module rdma_ucm loaded?)");
  // If the constructor throws from here on, the destructor does not run, so its work is done below.
  try {
    fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
    CmId* id = NewId();
    Check(api_->bind_addr(id, Plain(&own)), "binding");
    if (id->context == nullptr || options.device != id->context->device->name) {
      const std::string found = id->context == nullptr ? "no RDMA device" : id->context->device->name;
      throw std::runtime_error(options.address + " leads to " + found + " and not to the iWARP device " +
                               options.device +
                               ": give each device an interface of its own, or choose others with JAXRING_IB_HCA");
    }
    if (!listening_) return;
    Check(api_->listen(id, kMaxQueuePairs), "listening");
    endpoint_->offer_.cm_port = ntohs(api_->get_src_port(id));
    std::strncpy(endpoint_->offer_.cm_address, options.address.c_str(), sizeof endpoint_->offer_.cm_address - 1);
  } catch (...) {
    for (CmId* id : ids_) api_->destroy_id(id);
    api_->destroy_event_channel(channel_);
    throw;
  }
}

CmConnector::~CmConnector() {
  DestroyQueuePairs();
  for (CmId* id : ids_) api_->destroy_id(id);
  api_->destroy_event_channel(channel_);
}

void CmConnector::DestroyQueuePairs() {
  for (CmId* id : connected_) {
    api_->disconnect(id);
    api_->destroy_qp(id);
  }
  connected_.clear();
}

void CmConnector::Throw(const std::string& what) const {
  throw std::runtime_error(endpoint_->port_.options().device + " (" + endpoint_->port_.options().address +
                           "): " + what + " failed (" + ErrnoText(errno) + ")");
}

void CmConnector::Check(int result, const char* what) const {
  if (result != 0) Throw(what);
}

CmId* CmConnector::NewId() {
  CmId* id = nullptr;
  Check(api_->create_id(channel_, &id, nullptr, kCmTcp), "making a connection's identifier");
  ids_.push_back(id);
  return id;
}

CmEvent* CmConnector::Await(int type, const char* what, Clock::time_point until) {
  CmEvent* event = Next(what, until);
  if (event->type == type) return event;
  const int found = event->type, status = event->status;
  api_->ack_cm_event(event);
  errno = status < 0 ? -status : ECONNREFUSED;
  Throw(std::string(what) + " (event " + std::to_string(found) + ")");
}

CmEvent* CmConnector::Next(const char* what, Clock::time_point until) {
  while (true) {
    CmEvent* event = nullptr;
    if (api_->get_cm_event(channel_, &event) == 0) return event;
    if (errno != EAGAIN && errno != EINTR) Throw(what);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd waiting{channel_->fd, POLLIN, 0};
    if (left <= 0 || poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, 1000))) < 0) {
      errno = ETIMEDOUT;
      Throw(what);
    }
  }
}

void CmConnector::Connect(double timeout_s) {
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  endpoint_->qps_.assign(endpoint_->port_.options().queue_pairs, nullptr);
  for (int i = 0; i < endpoint_->port_.options().queue_pairs; ++i) listening_ ? Answer(until) : Dial(i, until);
}

void CmConnector::MakeQueuePair(CmId* id, int queue_pair) {
  QpInit init = endpoint_->Init();
  if (api_->create_qp(id, endpoint_->memory_->pd(), &init) != 0) {
    init = endpoint_->Init();
    init.capabilities.max_inline = 0;
    Check(api_->create_qp(id, endpoint_->memory_->pd(), &init), "making a queue pair");
  }
  connected_.push_back(id);
  endpoint_->max_inline_ = init.capabilities.max_inline;
  endpoint_->qps_[queue_pair] = id->qp;
  endpoint_->PostReceives(queue_pair);
}

// The kernel may miss the neighbour's answer, and retries only after the timeout, so each attempt has a short timeout.
void CmConnector::Resolve(CmId* id, sockaddr* to, Clock::time_point until) {
  constexpr const char* kWhat = "resolving the peer's address";
  while (true) {
    Check(api_->resolve_addr(id, nullptr, to, kResolveMs), kWhat);
    CmEvent* event = Next(kWhat, until);
    const int type = event->type, status = event->status;
    api_->ack_cm_event(event);
    if (type == kCmAddressResolved) return;
    errno = status < 0 ? -status : ETIMEDOUT;
    if (errno != ETIMEDOUT) Throw(kWhat);
  }
}

void CmConnector::Dial(int queue_pair, Clock::time_point until) {
  CmId* id = ids_.front();
  if (queue_pair > 0) {
    id = NewId();
    sockaddr_storage own = Parse(endpoint_->port_.options().address, 0);
    Check(api_->bind_addr(id, Plain(&own)), "binding");
  }
  const Offer& peer = endpoint_->peer_;
  sockaddr_storage to = Parse(peer.cm_address, peer.cm_port);
  Resolve(id, Plain(&to), until);
  Check(api_->resolve_route(id, kResolveMs), "finding a route to the peer");
  api_->ack_cm_event(Await(kCmRouteResolved, "finding a route to the peer", until));
  MakeQueuePair(id, queue_pair);
  const Introduction introduction{peer.token, static_cast<uint32_t>(queue_pair)};
  CmParameters parameters{};
  parameters.data = &introduction;
  parameters.data_bytes = sizeof introduction;
  Check(api_->connect(id, &parameters), "connecting");
  api_->ack_cm_event(Await(kCmEstablished, "connecting", until));
}

void CmConnector::Answer(Clock::time_point until) {
  while (true) {
    CmEvent* event = Await(kCmConnectRequest, "waiting for the peer's connection", until);
    CmId* id = event->id;
    Introduction introduction{};
    const CmParameters& shown = event->parameters;
    const bool whole = shown.data != nullptr && shown.data_bytes >= sizeof introduction;
    if (whole) std::memcpy(&introduction, shown.data, sizeof introduction);
    api_->ack_cm_event(event);
    if (!whole || introduction.token != endpoint_->offer_.token ||
        introduction.queue_pair >= static_cast<uint32_t>(endpoint_->port_.options().queue_pairs) ||
        endpoint_->qps_[introduction.queue_pair] != nullptr) {
      api_->reject(id, nullptr, 0);  // an unauthenticated peer: the right one sends the token of our offer
      api_->destroy_id(id);
      continue;
    }
    ids_.push_back(id);
    MakeQueuePair(id, static_cast<int>(introduction.queue_pair));
    CmParameters parameters{};
    Check(api_->accept(id, &parameters), "accepting the peer's connection");
    api_->ack_cm_event(Await(kCmEstablished, "accepting the peer's connection", until));
    return;
  }
}

}  // namespace jaxring::verbs
