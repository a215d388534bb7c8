// The port of an RDMA device on which an endpoint is.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "transport/verbs/endpoint/verbs_device.h"
#include "transport/verbs/endpoint/verbs_offer.h"

namespace jaxring::verbs {

struct EndpointOptions {
  std::string device;
  int port = 1;
  int gid_index = -1;   // -1: addressed by LID (InfiniBand), or by IP (iWARP)
  std::string address;  // iWARP: the IP address of the device's interface
  int queue_pairs = 1;
  int timeout = 20;  // until a packet is resent: 4.096 us x 2^timeout
  int retry_count = 7;
};

class Port {
 public:
  // Opens the device, but for iWARP, whose connection manager does that. Throws std::runtime_error.
  explicit Port(EndpointOptions options);

  const EndpointOptions& options() const { return options_; }
  const Api* api() const { return api_; }
  bool iwarp() const { return !options_.address.empty(); }
  Context* context() const { return context_; }
  void set_context(Context* context) { context_ = context; }
  // Fills in what the peer needs to know of the port. Throws std::runtime_error where it is not active.
  void Query(Offer* offer);
  bool IsActive() const;
  // For how long the device sends a lost packet again.
  std::chrono::microseconds Patience() const;
  // Device, port and address in words.
  const std::string& words() const { return words_; }
  [[noreturn]] void Throw(const std::string& what, int error) const;

 private:
  const EndpointOptions options_;
  const Api* const api_;
  std::unique_ptr<OpenDevice> device_;  // not for iWARP
  Context* context_ = nullptr;
  std::string words_;
};

}  // namespace jaxring::verbs
