#include "cuda/experimental/multicast.h"
#include "cuda/sim/shim/shim_kernels.h"

namespace jaxring::cuda::shim {

void PlayMulticast(const Multicast& memory, const Args& args, Shared& shared) {
  cuda::PlayMulticast(memory, args, shared);
}

}  // namespace jaxring::cuda::shim
