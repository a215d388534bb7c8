// The kernels' bodies by index: one for each protocol and width of accumulators.
#pragma once

#include "cuda/device/ll.h"
#include "cuda/device/ll128.h"
#include "cuda/device/simple.h"
#include "cuda/kernels/device_interpreter.h"
#include "cuda/kernels/staging.h"

namespace jaxring::cuda {

// For the schedules that only move, 0; else Widening().
constexpr uint32_t WidthOf(const Args& args) { return args.call.reduces ? Widening(args.call.dtype, true) : 0; }

// Threads of a block at most, by width: wide accumulators need the registers.
constexpr int ThreadsAtMost(uint32_t width) { return width == 4 ? 256 : kMaxThreads; }

// `kStages`: the launch copies its buffers (staging.h); without it Args::staging must say that there is nothing to
// copy.
template <class Protocol, int kWiden, bool kStages = false>
JAXRING_DEVICE void PlayLane(const Args& args, Shared& shared) {
  using Slices = PlainSlices<Protocol, kWiden>;
  if constexpr (kStages) {
    if (!StageIn(args, shared)) return LeaveLaunch(args, false);
    StageOut(args, shared, Player<Slices>(args, shared, Slices(args)).Play());
  } else {
    LeaveLaunch(args, Player<Slices>(args, shared, Slices(args)).Play());
  }
}

}  // namespace jaxring::cuda
