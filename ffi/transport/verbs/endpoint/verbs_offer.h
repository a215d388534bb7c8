// What the two ends of an RDMA connection tell each other before they connect.
#pragma once

#include <cstdint>
#include <string>

#include "transport/verbs/endpoint/verbs_abi.h"

namespace jaxring::verbs {

constexpr int kMaxQueuePairs = 16;
constexpr uint32_t kOfferVersion = 1;

enum class Layer : uint8_t { kInfiniband = 0, kRoce = 1, kIwarp = 2 };

// What the two ends exchange before they connect, in the byte order of x86-64 and arm64.
struct Offer {
  uint32_t version;
  Layer layer;
  uint8_t mtu;
  uint8_t queue_pairs;
  uint8_t has_gid;
  char gid_type[16];
  Gid gid;
  uint64_t memory;  // where the registered memory begins, and its size
  uint64_t bytes;
  uint64_t token;  // iWARP: the dialling peer must send it
  uint32_t rkey;
  uint32_t psn;
  uint32_t qpn[kMaxQueuePairs];
  uint16_t lid;
  uint16_t cm_port;
  char cm_address[48];
};
std::string ToHex(const Offer& offer);
// Throws std::runtime_error if the text is not an offer.
Offer FromHex(const std::string& text);

}  // namespace jaxring::verbs
