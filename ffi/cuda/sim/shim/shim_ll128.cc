#include "cuda/sim/shim/shim_kernels.h"
#include "cuda/sim/shim/widths.h"

namespace jaxring::cuda::shim {

void PlayTableLL128(const Args& args, Shared& shared) { PlayWidth<LL128>(args, shared); }

}  // namespace jaxring::cuda::shim
