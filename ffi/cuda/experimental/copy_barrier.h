// Epoch barriers as kernels of their own, for collectives whose bytes the copy engines move: the stream's work between
// an opening and a closing kernel corresponds to a lane's work between its barriers (epoch_barrier.h). One block, which
// uses lane 0's barriers.
//
// The driver can make a stream write and wait for words of memory without a kernel. But such a wait has no deadline,
// and its number is part of the command, so a replayed graph repeats it. A kernel has a deadline, reports which rank
// was late, and counts in device memory.
#pragma once

#include "cuda/device/epoch_barrier.h"

namespace jaxring::cuda {

inline constexpr int kCopyBarrierThreads = 64;

JAXRING_DEVICE void PlayCopyBarrier(bool open, const Args& args, Shared& shared) {
  Lane lane(args, shared);
  if (open) {
    if (!EnterBarrier(lane) && ThreadIndex() == 0) args.state->failed = 1;
    return;
  }
  lane.epoch = args.group.epochs[2 * lane.number] + 1;
  // If a begin did not arrive, here or in an earlier launch, peers must not take the memory's bytes for this launch's.
  const bool good = LeaveBarrier(lane, args.state->failed != 0);
  if (!good && ThreadIndex() == 0) args.state->failed = 1;
  LeaveLaunch(args, good);
}

}  // namespace jaxring::cuda
