#include "cuda/sim/shim/shim_kernels.h"
#include "cuda/sim/shim/widths.h"

namespace jaxring::cuda::shim {

void PlayTableLL(const Args& args, Shared& shared) { PlayWidth<LL>(args, shared); }

}  // namespace jaxring::cuda::shim
