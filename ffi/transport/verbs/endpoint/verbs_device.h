// The RDMA devices of this host and the state of their ports. Python chooses among them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/verbs/endpoint/verbs_api.h"

namespace jaxring::verbs {

struct GidEntry {
  int index = 0;
  std::string type;     // the kernel's word: "IB/RoCE v1" or "RoCE v2"
  std::string address;  // as an IPv6 address; RoCE's IPv4 ones are mapped (::ffff:a.b.c.d)
  std::string netdev;   // the network interface behind it, if any
};

struct PortInfo {
  std::string device;
  int port = 0;
  bool active = false;
  std::string state;
  std::string layer;  // "InfiniBand", "RoCE" or "iWARP"
  int mtu = 0;        // bytes
  int mbps = 0;
  int lid = 0;
  std::string netdev;
  std::string pci;  // the path of its PCI device in sysfs, "" for a software device
  std::vector<GidEntry> gids;
};

// Every port of every device; none where there is no libibverbs or no device, and then `why` says so.
std::vector<PortInfo> ListPorts(std::string* why);

// An open device.
class OpenDevice {
 public:
  // Throws std::runtime_error.
  explicit OpenDevice(const std::string& name);
  ~OpenDevice();
  OpenDevice(const OpenDevice&) = delete;
  Context* context() const { return context_; }

 private:
  const Api* api_;
  Context* context_;
};

std::string GidText(const Gid& gid);
// The first line of a file in sysfs, or "" if there is no such file.
std::string ReadLine(const std::string& path);
// An errno's text, such as "Operation not permitted".
std::string ErrnoText(int error);

}  // namespace jaxring::verbs
