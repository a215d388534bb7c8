// The interpreter with an epilogue, by protocol: epilogue_kernels.cu's choice on the host.
#include "cuda/kernels/epilogue_slices.h"
#include "cuda/sim/shim/shim_kernels.h"

namespace jaxring::cuda::shim {

void PlayEpilogue(const EpilogueArgs& epilogue, const Args& args, Shared& shared) {
  if (args.protocol == Protocol::kLL) return PlayEpilogueLane<LL>(epilogue, args, shared);
  PlayEpilogueLane<Slots>(epilogue, args, shared);
}

}  // namespace jaxring::cuda::shim
