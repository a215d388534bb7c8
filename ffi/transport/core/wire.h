// What travels between two TCP pumps: a header before each payload. The reading half is here without its socket, since
// it takes what comes off a wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/crc32c.h"
#include "transport/core/ring.h"

namespace jaxring {

// In the byte order of x86-64 and arm64 Linux.
struct WireHeader {
  // In place of a protocol: the sender ends in good order, and nothing follows.
  static constexpr uint32_t kGoodbye = 255;
  MessageHeader message;
  uint32_t protocol;
  uint32_t seal;

  // A seal is the CRC of what stands before it, begun with the message's number on the connection: it shows a header
  // that was damaged, and one that is not the next: what was lost, came twice or in another order. Bytes that are taken
  // for a header because others are missing show, too.
  uint32_t Seal(uint64_t number) const {
    return Crc32c(this, offsetof(WireHeader, seal), static_cast<uint32_t>(number));
  }
  bool Sealed(uint64_t number) const { return seal == Seal(number); }
};
static_assert(sizeof(WireHeader) == 40);

// What to say where a seal is wrong.
std::string BrokenSeal(uint64_t number);

// Puts a stream's messages into the two rings of a link.
class WireReader {
 public:
  WireReader(RingMemory ll, RingMemory simple, Notifier* on_message)
      : ll_(ll, on_message), simple_(simple, on_message) {}

  enum class Result { kMore, kFull, kGarbage };
  // Takes `*used` bytes of `size`. kMore: a header is incomplete, so what is left has to come again with more behind
  // it. kFull: a ring has no room (its next release tells). kGarbage: the stream has no meaning any more.
  Result Take(const char* data, size_t size, size_t* used);
  // How much of the message in hand is missing, and its place: who has no other bytes before these may read them into
  // it and say so.
  size_t missing() const { return in_message_ ? header_.message.bytes - filled_ : 0; }
  char* place() { return ring().payload(position_) + filled_; }
  void Filled(size_t bytes);
  // Whether the sender has said goodbye.
  bool goodbye() const { return goodbye_; }
  // How many messages came before the one in hand.
  uint64_t number() const { return number_; }

 private:
  RingSender& ring() { return header_.protocol == static_cast<uint32_t>(Protocol::kLL) ? ll_ : simple_; }

  RingSender ll_, simple_;  // filled here, emptied by the lanes
  bool in_message_ = false, goodbye_ = false;
  WireHeader header_{};
  uint64_t position_ = 0, number_ = 0;
  size_t filled_ = 0;
};

}  // namespace jaxring
