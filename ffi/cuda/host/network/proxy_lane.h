// The proxy's state of one lane's connection with a peer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cuda/host/network/proxy.h"

namespace jaxring::cuda {

// The first two have a word for each slot.
enum Counter { kTail = 0, kArrived, kCredit, kGive, kCounters };
// The last bit of a message's operation: 0 for data, 1 for credits, which go in the other direction.
constexpr uint64_t kCreditBit = 1;

// The first message of credits: where the receiver's slots are, and the key for writing them.
struct Invitation {
  uint64_t slots;
  uint64_t key;
};
static_assert(sizeof(Invitation) != sizeof(uint64_t));  // the size of a credit tells them apart

// All numbers count from the first message. `sent` and `credited` were sent to the peer, `received` and `credits` have
// arrived.
struct Proxy::LaneState {
  ProxySpec what;
  uint32_t index;                // of the lane
  std::shared_ptr<Slots> slots;  // of all lanes
  char *send_slots, *recv_slots;
  uint64_t* counters[kCounters];
  uint32_t* sizes;
  uint64_t sent = 0, received = 0, credited = 0, credit_messages = 0, credits = 0;
  std::shared_ptr<SendLink> send;
  std::shared_ptr<RecvLink> recv;
  bool damaged = false;
  // `invited`: the peer's slots, once it has said where they are. `invitation`: to be sent to the peer.
  std::optional<Invitation> invited, invitation;

  bool direct() const { return what.counts && slots->direct(); }
  MessageId Id(bool outgoing, bool credit, uint64_t number) const {
    const uint64_t op = (what.name << 1) | (credit ? kCreditBit : 0);
    const auto src = static_cast<uint32_t>(outgoing ? what.src : what.dst);
    const auto dst = static_cast<uint32_t>(outgoing ? what.dst : what.src);
    return {op, src, dst, static_cast<uint16_t>(MessageId::kSecondEngine | index), static_cast<uint16_t>(number)};
  }
};

}  // namespace jaxring::cuda
