// send and recv: a note at the desk, then the data as a step table moves it. See Mail.
#pragma once

#include "cuda/kernels/lane_kernels.h"
#include "cuda/kernels/messages.h"

namespace jaxring::cuda {

// By one thread. False if it gave up, or if what comes is not what was asked for.
JAXRING_DEVICE bool PassDesk(const Lane& lane, const Mail& mail) {
  Connection& desk = *mail.desk;
  if (mail.sends) {
    const uint64_t number = desk.sent++, slot = number & (mail.slots - 1);
    if (number >= mail.slots && !AwaitAtLeast(lane, Wait::kRoom, desk.peer, desk.credit, number + 1 - mail.slots)) {
      return false;
    }
    StoreFarElement<uint64_t>(desk.send_slots + slot * mail.slot_bytes, mail.check);
    if (desk.sizes != nullptr) StoreRelaxed(&desk.sizes[slot], static_cast<uint32_t>(sizeof mail.check));
    StoreRelease(desk.tail, number + 1);
    return true;
  }
  const uint64_t number = desk.received++;
  if (!AwaitAtLeast(lane, Wait::kMessage, desk.peer, desk.arrived, number + 1)) return false;
  const Vec note = LoadSlot(desk.recv_slots + (number & (mail.slots - 1)) * mail.slot_bytes);
  StoreRelease(desk.give, number + 1);
  const uint64_t theirs = static_cast<uint64_t>(note.w[1]) << 32 | note.w[0];
  if (theirs != mail.check) Report(lane, Fault::kDisagrees, Wait::kMessage, desk.peer, number);
  return theirs == mail.check;
}

// The first lane has the note. The others wait for data that does not come where it is the wrong one, and the fault's
// report ends them.
JAXRING_DEVICE void PlayMail(const Mail& mail, const Args& args, Shared& shared) {
  if (mail.desk != nullptr && BlockIndex() == 0) {
    bool failed = false;
    if (ThreadIndex() == 0) failed = !PassDesk(Lane(args, shared), mail);
    if (SyncBlockOr(failed)) return;
  }
  PlayLane<Simple, 0>(args, shared);
}

}  // namespace jaxring::cuda
