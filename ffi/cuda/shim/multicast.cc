#include "ffi/cuda/multicast.h"

#include "ffi/cuda/shim/kernels.h"

namespace jaxring::cuda::shim {

void PlayMulticast(const Multicast& memory, const Args& args, Shared& shared) {
  cuda::PlayMulticast(memory, args, shared);
}

}  // namespace jaxring::cuda::shim
