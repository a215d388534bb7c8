// The interpreter with an epilogue, by protocol: epilogue_kernels.cu's choice on the host.
#include "cuda/kernels/epilogue_slices.h"
#include "cuda/sim/shim/shim_kernels.h"

namespace jaxring::cuda::shim {

namespace {

template <bool kStages>
void PlayEpilogueOf(const EpilogueArgs& epilogue, const Args& args, Shared& shared) {
  if (args.call.protocol == Protocol::kLL) return PlayEpilogueLane<LL, kStages>(epilogue, args, shared);
  PlayEpilogueLane<Slots, kStages>(epilogue, args, shared);
}

}  // namespace

void PlayEpilogue(const EpilogueArgs& epilogue, const Args& args, Shared& shared) {
  args.staging.any() ? PlayEpilogueOf<true>(epilogue, args, shared) : PlayEpilogueOf<false>(epilogue, args, shared);
}

}  // namespace jaxring::cuda::shim
