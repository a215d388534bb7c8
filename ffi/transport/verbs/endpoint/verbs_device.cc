#include "transport/verbs/endpoint/verbs_device.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace jaxring::verbs {
namespace {

// The gigabits per second of a lane, indexed by the bit of active_speed, and the lanes, by the bit of active_width.
double LaneGbps(uint8_t speed) {
  switch (speed) {
    case 1:
      return 2.5;
    case 2:
      return 5;
    case 4:
    case 8:
      return 10;
    case 16:
      return 14;
    case 32:
      return 25;
    case 64:
      return 50;
    case 128:
      return 100;
    default:
      return 0;
  }
}

int Lanes(uint8_t width) {
  switch (width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 0;
  }
}

std::string StateName(int state) {
  static constexpr std::array kNames = {"no state", "down", "initializing", "armed", "active", "active (deferred)"};
  return state >= 0 && state < static_cast<int>(kNames.size()) ? kNames[state] : "state " + std::to_string(state);
}

PortInfo Describe(const Api& api, Context* context, int port, const PortAttributes& attributes) {
  const Device& device = *context->device;
  const std::string folder = std::string(device.path) + "/ports/" + std::to_string(port);
  PortInfo info;
  info.device = device.name;
  info.port = port;
  info.active = attributes.state == kPortActive;
  info.state = StateName(attributes.state);
  const bool ethernet = attributes.link_layer == kLinkEthernet;
  info.layer = device.transport == kTransportIwarp ? "iWARP" : ethernet ? "RoCE" : "InfiniBand";
  info.mtu = attributes.active_mtu > 0 && attributes.active_mtu <= 5 ? 128 << attributes.active_mtu : 0;
  info.mbps = static_cast<int>(1000 * LaneGbps(attributes.active_speed) * Lanes(attributes.active_width));
  info.lid = attributes.lid;
  std::array<char, PATH_MAX> real;
  const std::string link = std::string(device.path) + "/device";
  if (realpath(link.c_str(), real.data()) != nullptr) info.pci = real.data();
  for (int i = 0; i < attributes.gid_table_length; ++i) {
    Gid gid;
    const std::string index = std::to_string(i);
    if (api.query_gid(context, static_cast<uint8_t>(port), i, &gid) != 0) continue;
    if (std::all_of(gid.raw, gid.raw + sizeof gid.raw, [](uint8_t byte) { return byte == 0; })) continue;
    GidEntry entry{i, ReadLine(folder + "/gid_attrs/types/" + index), GidText(gid),
                   ReadLine(folder + "/gid_attrs/ndevs/" + index)};
    if (info.netdev.empty()) info.netdev = entry.netdev;
    info.gids.push_back(std::move(entry));
  }
  return info;
}

}  // namespace

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string ErrnoText(int error) { return std::strerror(error); }

std::string GidText(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text;
  return inet_ntop(AF_INET6, gid.raw, text.data(), text.size()) == nullptr ? "" : text.data();
}

std::vector<PortInfo> ListPorts(std::string* why) {
  std::vector<PortInfo> ports;
  const Api* api = LoadApi(why);
  if (api == nullptr) return ports;
  int count = 0;
  Device** devices = api->get_device_list(&count);
  if (devices == nullptr || count == 0) {
    *why = "this host has no RDMA device (/sys/class/infiniband is empty, or /dev/infiniband is not there)";
  }
  for (int i = 0; i < count; ++i) {
    Context* context = api->open_device(devices[i]);
    if (context == nullptr) {
      *why = std::string("device ") + devices[i]->name + " cannot be opened (" + ErrnoText(errno) +
             "): is /dev/infiniband/uverbs* there, and may this user open it?";
      continue;
    }
    PortAttributes attributes{};
    for (int port = 1; api->query_port(context, static_cast<uint8_t>(port), &attributes) == 0; ++port) {
      ports.push_back(Describe(*api, context, port, attributes));
      if (port == UINT8_MAX) break;
    }
    api->close_device(context);
  }
  if (devices != nullptr) api->free_device_list(devices);
  return ports;
}

OpenDevice::OpenDevice(const std::string& name) : context_(nullptr) {
  std::string why;
  api_ = LoadApi(&why);
  if (api_ == nullptr) throw std::runtime_error(why);
  int count = 0;
  Device** devices = api_->get_device_list(&count);
  bool found = false;
  int error = 0;
  for (int i = 0; i < count && !found; ++i) {
    found = name == devices[i]->name;
    if (found) context_ = api_->open_device(devices[i]);
    if (found) error = errno;
  }
  if (devices != nullptr) api_->free_device_list(devices);
  if (!found) throw std::runtime_error("there is no RDMA device " + name + " on this host");
  if (context_ == nullptr) {
    throw std::runtime_error("the RDMA device " + name + " cannot be opened (" + ErrnoText(error) +
                             "): is /dev/infiniband/uverbs* there, and may this user open it?");
  }
}

OpenDevice::~OpenDevice() { api_->close_device(context_); }

}  // namespace jaxring::verbs
