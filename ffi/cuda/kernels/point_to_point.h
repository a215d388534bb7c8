// send and recv: a message header through the header ring, then the data by a step table. See PointToPoint.
#pragma once

#include "cuda/kernels/lane_kernels.h"
#include "cuda/kernels/messages.h"

namespace jaxring::cuda {

// Called by one thread. Returns false if it gave up, or if the peer's header differs from this rank's.
JAXRING_DEVICE bool ExchangeHeader(const Lane& lane, const PointToPoint& message) {
  Connection& ring = *message.header_ring;
  if (message.sends) {
    const uint64_t number = ring.sent++, slot = number & (message.slots - 1);
    if (number >= message.slots &&
        !AwaitAtLeast(lane, Wait::kRoom, ring.peer, ring.credit, number + 1 - message.slots)) {
      return false;
    }
    StoreFarElement<uint64_t>(ring.send_slots + slot * message.slot_bytes, message.check);
    if (ring.sizes != nullptr) StoreRelaxed(&ring.sizes[slot], static_cast<uint32_t>(sizeof message.check));
    StoreRelease(&ring.tail[slot], Stamp::Of(number, lane.args.call.number));
    return true;
  }
  const uint64_t number = ring.received++, slot = number & (message.slots - 1);
  if (!AwaitMessage(lane, ring.peer, ring.arrived + slot, number)) return false;
  const Vec header = LoadSlot(ring.recv_slots + slot * message.slot_bytes);
  StoreRelease(ring.give, number + 1);
  const uint64_t theirs = static_cast<uint64_t>(header.w[1]) << 32 | header.w[0];
  if (theirs != message.check) Report(lane, Fault::kDisagrees, Wait::kMessage, ring.peer, number);
  return theirs == message.check;
}

// The first lane exchanges the header. If it does not match, the other lanes wait for data that does not arrive, and
// the report of the fault ends them.
JAXRING_DEVICE void PlayPointToPoint(const PointToPoint& message, const Args& args, Shared& shared) {
  if (message.header_ring != nullptr && BlockIndex() == 0) {
    bool failed = false;
    if (ThreadIndex() == 0) failed = !ExchangeHeader(Lane(args, shared), message);
    if (SyncBlockOr(failed)) return LeaveLaunch(args, false);
  }
  PlayLane<Simple, 0>(args, shared);
}

}  // namespace jaxring::cuda
