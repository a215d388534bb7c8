#include "cuda/sim/shim/shim_kernels.h"

#include "cuda/experimental/copy_barrier.h"

namespace jaxring::cuda::shim {

void PlayTable(const Args& args, Shared& shared) {
  switch (args.call.protocol) {
    case Protocol::kSimple:
      return PlayTableSimple(args, shared);
    case Protocol::kLL:
      return PlayTableLL(args, shared);
    case Protocol::kLL128:
      return PlayTableLL128(args, shared);
  }
}

void PlayExtents(const Ragged& ragged, const Args& args, RaggedShared& shared) {
  RaggedCutter(ragged, args).Cut(shared);
}

void PlayCopyBarrier(bool open, const Args& args, Shared& shared) { cuda::PlayCopyBarrier(open, args, shared); }

}  // namespace jaxring::cuda::shim
