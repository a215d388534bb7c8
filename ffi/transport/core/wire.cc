#include "transport/core/wire.h"

#include <algorithm>
#include <cstring>

namespace jaxring {

std::string BrokenSeal(uint64_t number) {
  return "message " + std::to_string(number) +
         " of the connection arrived damaged, cut, twice or not in its turn, so nothing on it can be trusted any more";
}

WireReader::Result WireReader::Take(const char* data, size_t size, size_t* used) {
  *used = 0;
  while (true) {
    if (!in_message_) {
      if (size - *used < sizeof header_) return Result::kMore;
      std::memcpy(&header_, data + *used, sizeof header_);
      if (!header_.Sealed(number_)) return Result::kGarbage;
      if (header_.protocol == WireHeader::kGoodbye) {
        goodbye_ = true;
        ++number_;
        *used += sizeof header_;
        continue;
      }
      const bool known = header_.protocol == static_cast<uint32_t>(Protocol::kLL) ||
                         header_.protocol == static_cast<uint32_t>(Protocol::kSimple);
      if (!known || header_.message.bytes > ring().memory().shape().payload_bytes) return Result::kGarbage;
      if (!ring().Reserve(&position_)) return Result::kFull;
      *used += sizeof header_;
      in_message_ = true;
      filled_ = 0;
    }
    const size_t take = std::min(size - *used, missing());
    if (take > 0) std::memcpy(place(), data + *used, take);
    *used += take;
    Filled(take);
    if (in_message_) return Result::kMore;
  }
}

void WireReader::Filled(size_t bytes) {
  filled_ += bytes;
  if (filled_ < header_.message.bytes) return;
  ring().Publish(position_, header_.message.id(), header_.message.message());
  in_message_ = false;
  ++number_;
}

}  // namespace jaxring
