// What goes by the protocol Simple.
#include "cuda/kernels/point_to_point.h"
#include "cuda/sim/shim/shim_kernels.h"
#include "cuda/sim/shim/widths.h"

namespace jaxring::cuda::shim {

void PlayTableSimple(const Args& args, Shared& shared) { PlayWidth<Simple>(args, shared); }

void PlayPointToPoint(const PointToPoint& message, const Args& args, Shared& shared) {
  cuda::PlayPointToPoint(message, args, shared);
}

}  // namespace jaxring::cuda::shim
