#include "ffi/cuda/shim/kernels.h"
#include "ffi/cuda/shim/widths.h"

namespace jaxring::cuda::shim {

void PlayTableLL(const Args& args, Shared& shared) { PlayWidth<LL>(args, shared); }

}  // namespace jaxring::cuda::shim
