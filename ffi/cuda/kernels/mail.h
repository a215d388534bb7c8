// send and recv: a note at the header ring, then the data as a step table moves it. See Mail.
#pragma once

#include "cuda/kernels/lane_kernels.h"
#include "cuda/kernels/messages.h"

namespace jaxring::cuda {

// By one thread. False if it gave up, or if what comes is not what was asked for.
JAXRING_DEVICE bool ExchangeHeader(const Lane& lane, const Mail& mail) {
  Connection& ring = *mail.header_ring;
  if (mail.sends) {
    const uint64_t number = ring.sent++, slot = number & (mail.slots - 1);
    if (number >= mail.slots && !AwaitAtLeast(lane, Wait::kRoom, ring.peer, ring.credit, number + 1 - mail.slots)) {
      return false;
    }
    StoreFarElement<uint64_t>(ring.send_slots + slot * mail.slot_bytes, mail.check);
    if (ring.sizes != nullptr) StoreRelaxed(&ring.sizes[slot], static_cast<uint32_t>(sizeof mail.check));
    StoreRelease(ring.tail, number + 1);
    return true;
  }
  const uint64_t number = ring.received++;
  if (!AwaitAtLeast(lane, Wait::kMessage, ring.peer, ring.arrived, number + 1)) return false;
  const Vec note = LoadSlot(ring.recv_slots + (number & (mail.slots - 1)) * mail.slot_bytes);
  StoreRelease(ring.give, number + 1);
  const uint64_t theirs = static_cast<uint64_t>(note.w[1]) << 32 | note.w[0];
  if (theirs != mail.check) Report(lane, Fault::kDisagrees, Wait::kMessage, ring.peer, number);
  return theirs == mail.check;
}

// The first lane has the note. The others wait for data that does not come where it is the wrong one, and the fault's
// report ends them.
JAXRING_DEVICE void PlayMail(const Mail& mail, const Args& args, Shared& shared) {
  if (mail.header_ring != nullptr && BlockIndex() == 0) {
    bool failed = false;
    if (ThreadIndex() == 0) failed = !ExchangeHeader(Lane(args, shared), mail);
    if (SyncBlockOr(failed)) return;
  }
  PlayLane<Simple, 0>(args, shared);
}

}  // namespace jaxring::cuda
