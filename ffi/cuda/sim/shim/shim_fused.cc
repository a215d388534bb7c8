#include "cuda/kernels/direct.h"
#include "cuda/kernels/lane_kernels.h"
#include "cuda/kernels/one_shot.h"
#include "cuda/sim/shim/shim_kernels.h"

namespace jaxring::cuda::shim {
namespace {

struct PlayOneShot {
  const Args& args;
  Shared& shared;
  template <DType kType, int kRanks>
  void Sum() const {
    OneShotSum<kType, kRanks>(args, shared).Play();
  }
  template <int kWiden>
  void Any() const {
    PlayAnyOneShot<kWiden>(args, shared);
  }
};

template <bool kStages>
void PlayFusedOf(Fused fused, const Args& args, Shared& shared) {
  switch (WidthOf(args)) {
    case 0:
      return cuda::PlayFused<0, kStages>(fused, args, shared);
    case 1:
      return cuda::PlayFused<1, kStages>(fused, args, shared);
    case 2:
      return cuda::PlayFused<2, kStages>(fused, args, shared);
    default:
      return cuda::PlayFused<4, kStages>(fused, args, shared);
  }
}

}  // namespace

void PlayFused(Fused fused, const Args& args, Shared& shared) {
  if (fused == Fused::kAllReduceOneShot) return OneShotOf<void>(args, PlayOneShot{args, shared});
  args.staging.any() ? PlayFusedOf<true>(fused, args, shared) : PlayFusedOf<false>(fused, args, shared);
}

}  // namespace jaxring::cuda::shim
