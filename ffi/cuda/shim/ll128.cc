#include "ffi/cuda/shim/kernels.h"
#include "ffi/cuda/shim/widths.h"

namespace jaxring::cuda::shim {

void PlayTableLL128(const Args& args, Shared& shared) { PlayWidth<LL128>(args, shared); }

}  // namespace jaxring::cuda::shim
