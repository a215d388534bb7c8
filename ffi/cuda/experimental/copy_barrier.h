// Gates as kernels of their own, for collectives whose bytes the copy engines move: what comes between an opening and a
// closing kernel in a stream is what a lane does between its barriers elsewhere (epoch_barrier.h). One block, and lane
// 0's barriers.
//
// The driver can have a stream write and wait for words of memory without a kernel. But it waits for ever, and for a
// number that stands in the command, which a replayed graph repeats; a kernel has a deadline, says who was late, and
// counts in device memory.
#pragma once

#include "cuda/device/epoch_barrier.h"

namespace jaxring::cuda {

inline constexpr int kCopyBarrierThreads = 64;

JAXRING_DEVICE void PlayCopyBarrier(bool open, const Args& args, Shared& shared) {
  Lane lane(args, shared);
  if (open) {
    EnterBarrier(lane);
    return;
  }
  lane.epoch = args.epochs[2 * lane.number] + 1;
  // A begin that did not come, here or in an earlier launch: peers must not take what lies there for this launch's.
  LeaveBarrier(lane, LoadRelaxed(&args.status->fault) != 0);
}

}  // namespace jaxring::cuda
