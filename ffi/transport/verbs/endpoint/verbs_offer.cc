#include "transport/verbs/endpoint/verbs_offer.h"

#include <stdexcept>

namespace jaxring::verbs {

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

}  // namespace jaxring::verbs
