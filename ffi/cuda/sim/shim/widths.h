// The interpreter of one protocol for each width, as a switch: lane_kernels.cu's KernelOf on the host.
#pragma once

#include "cuda/kernels/lane_kernels.h"

namespace jaxring::cuda::shim {

template <class Protocol, bool kStages>
void PlayWidthOf(const Args& args, Shared& shared) {
  switch (WidthOf(args)) {
    case 0:
      return PlayLane<Protocol, 0, kStages>(args, shared);
    case 1:
      return PlayLane<Protocol, 1, kStages>(args, shared);
    case 2:
      return PlayLane<Protocol, 2, kStages>(args, shared);
    default:
      return PlayLane<Protocol, 4, kStages>(args, shared);
  }
}
template <class Protocol>
void PlayWidth(const Args& args, Shared& shared) {
  args.staging.any() ? PlayWidthOf<Protocol, true>(args, shared) : PlayWidthOf<Protocol, false>(args, shared);
}

}  // namespace jaxring::cuda::shim
