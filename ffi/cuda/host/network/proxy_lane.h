// One lane's traffic with a peer, as the proxy holds it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cuda/host/network/proxy.h"

namespace jaxring::cuda {

enum Counter { kTail = 0, kArrived, kCredit, kGive, kCounters };
// The last bit of a message's operation: data one way, counts of read slots the other.
constexpr uint64_t kCreditBit = 1;

// The first message of counts: where the receiver's slots are, and the key to write there.
struct Invitation {
  uint64_t slots;
  uint64_t key;
};
static_assert(sizeof(Invitation) != sizeof(uint64_t));  // what a count is

// Numbers count messages since the beginning. `sent` and `credited` are what went to the peer so far, `received` and
// `credits` what came.
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
  // Where the peer's slots are, once it has said so; what we are to say, until we have.
  std::optional<Invitation> invited, invitation;

  bool direct() const { return what.counts && slots->direct(); }
  MessageId Id(bool outgoing, bool credit, uint64_t number) const {
    const uint64_t op = (what.name << 1) | (credit ? kCreditBit : 0);
    const auto src = static_cast<uint32_t>(outgoing ? what.src : what.dst);
    const auto dst = static_cast<uint32_t>(outgoing ? what.dst : what.src);
    return {op, src, dst, static_cast<uint16_t>(index), static_cast<uint16_t>(number)};
  }
};

}  // namespace jaxring::cuda
