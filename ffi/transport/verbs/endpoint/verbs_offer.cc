#include "transport/verbs/endpoint/verbs_offer.h"

#include <stdexcept>

#include "base/hex.h"

namespace jaxring::verbs {

std::string ToHex(const Offer& offer) { return jaxring::ToHex({reinterpret_cast<const char*>(&offer), sizeof offer}); }

Offer FromHex(const std::string& text) {
  Offer offer{};
  const bool good = jaxring::FromHex(text, {reinterpret_cast<char*>(&offer), sizeof offer});
  if (!good || offer.version != kOfferVersion || offer.layer > Layer::kIwarp || offer.queue_pairs < 1 ||
      offer.queue_pairs > kMaxQueuePairs || offer.mtu < 1 || offer.mtu > 5) {
    throw std::runtime_error("the peer's RDMA address cannot be read: does it run the same version of jaxring?");
  }
  offer.gid_type[sizeof offer.gid_type - 1] = offer.cm_address[sizeof offer.cm_address - 1] = 0;
  return offer;
}

}  // namespace jaxring::verbs
