// The wire format between two TCP pumps: a header before each payload. The reading half takes bytes and has no socket,
// so that it can be fuzzed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/crc32c.h"
#include "transport/core/ring.h"

namespace jaxring {

// In the byte order of x86-64 and arm64 Linux.
struct WireHeader {
  // In place of a protocol: the sender ends in good order and sends nothing more.
  static constexpr uint32_t kGoodbye = 255;
  MessageHeader message;
  uint32_t protocol;
  uint32_t seal;

  // The seal is the CRC of the fields before it, seeded with the message's number on the connection. It detects a
  // damaged header, and a header that is not the next one: messages that were lost, duplicated or reordered, or payload
  // bytes taken for a header because bytes before them are missing.
  uint32_t Seal(uint64_t number) const {
    return Crc32c(this, offsetof(WireHeader, seal), static_cast<uint32_t>(number));
  }
  bool Sealed(uint64_t number) const { return seal == Seal(number); }
};
static_assert(sizeof(WireHeader) == 40);

// The error text for a wrong seal.
std::string BrokenSeal(uint64_t number);

// Puts a stream's messages into the two rings of a link.
class WireReader {
 public:
  WireReader(RingMemory ll, RingMemory simple, Notifier* on_message)
      : ll_(ll, on_message), simple_(simple, on_message) {}

  enum class Result { kMore, kFull, kGarbage };
  // Takes `*used` of `size` bytes. kMore: the caller passes the remaining bytes, an incomplete header, again with more
  // behind them. kFull: a ring has no room, and its next release notifies. kGarbage: the stream cannot be trusted.
  Result Take(const char* data, size_t size, size_t* used);
  // How many bytes of the current payload are missing and where they belong. A caller without buffered bytes may read
  // the socket directly to `place` and then call Filled.
  size_t missing() const { return in_message_ ? header_.message.bytes - filled_ : 0; }
  char* place() { return ring().payload(position_) + filled_; }
  void Filled(size_t bytes);
  // Whether the sender has said goodbye.
  bool goodbye() const { return goodbye_; }
  // The number of messages before the current one.
  uint64_t number() const { return number_; }

 private:
  RingSender& ring() { return header_.protocol == static_cast<uint32_t>(Protocol::kLL) ? ll_ : simple_; }

  RingSender ll_, simple_;  // this fills the rings that the lanes empty
  bool in_message_ = false, goodbye_ = false;
  WireHeader header_{};
  uint64_t position_ = 0, number_ = 0;
  size_t filled_ = 0;
};

}  // namespace jaxring
