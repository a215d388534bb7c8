#include "transport/verbs/endpoint/verbs_port.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace jaxring::verbs {
namespace {

const Api* ApiOrThrow() {
  std::string why;
  const Api* api = LoadApi(&why);
  if (api == nullptr) throw std::runtime_error(why);
  return api;
}

std::string Kib(uint64_t bytes) { return std::to_string((bytes + 1023) / 1024) + " KiB"; }

}  // namespace

Port::Port(EndpointOptions options) : options_(std::move(options)), api_(ApiOrThrow()) {
  words_ = options_.device + " port " + std::to_string(options_.port);
  if (iwarp()) {
    words_ += " (" + options_.address + ")";
    return;
  }
  device_ = std::make_unique<OpenDevice>(options_.device);
  context_ = device_->context();
}

void Port::Throw(const std::string& what, int error) const {
  std::string text = words_ + ": " + what + " failed (" + ErrnoText(error) + ")";
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

void Port::Query(Offer* offer) {
  const auto number = static_cast<uint8_t>(options_.port);
  PortAttributes port{};
  if (int error = api_->query_port(context_, number, &port); error != 0) Throw("asking for the port's state", error);
  if (port.state != kPortActive) {
    throw std::runtime_error(words_ + ": the port is not active: look at the link (`rdma link`, `ip link`)");
  }
  offer->mtu = static_cast<uint8_t>(std::clamp(port.active_mtu, 1, 5));
  offer->lid = port.lid;
  if (iwarp()) {
    offer->layer = Layer::kIwarp;
    return;
  }
  offer->layer = port.link_layer == kLinkEthernet ? Layer::kRoce : Layer::kInfiniband;
  if (options_.gid_index < 0) {
    words_ += " (LID " + std::to_string(port.lid) + ")";
    return;
  }
  const std::string index = std::to_string(options_.gid_index);
  const int error = api_->query_gid(context_, number, options_.gid_index, &offer->gid);
  if (error != 0 || std::all_of(offer->gid.raw, offer->gid.raw + 16, [](uint8_t byte) { return byte == 0; })) {
    throw std::runtime_error(words_ + " has no GID " + index +
                             ": see `jaxring doctor` or `show_gids` for those it has, and set JAXRING_IB_GID_INDEX");
  }
  offer->has_gid = 1;
  const std::string type = ReadLine(std::string(context_->device->path) + "/ports/" + std::to_string(options_.port) +
                                    "/gid_attrs/types/" + index);
  std::strncpy(offer->gid_type, type.c_str(), sizeof offer->gid_type - 1);
  words_ += " (GID " + index + " " + GidText(offer->gid) + ", " + offer->gid_type + ")";
}

bool Port::IsActive() const {
  PortAttributes port{};
  return api_->query_port(context_, static_cast<uint8_t>(options_.port), &port) != 0 || port.state == kPortActive;
}

std::chrono::microseconds Port::Patience() const {
  return std::chrono::microseconds((int64_t{1} << options_.timeout) * 4096 / 1000 * (options_.retry_count + 1));
}

}  // namespace jaxring::verbs
