// The shim's kernels (shim_kernels.h) from the compiler's output: each is launched with the parameters that its .cu
// file passes. Linked instead of cuda/sim/shim. Static shared memory is the block's here, not the caller's.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "cuda/experimental/bulk.h"
#include "cuda/kernels/epilogue_slices.h"
#include "cuda/kernels/lane_kernels.h"
#include "cuda/kernels/one_shot.h"
#include "cuda/sim/ptx/access.h"
#include "cuda/sim/shim/shim_kernels.h"

namespace jaxring::cuda {
namespace ptx {

// Defined by the translator.
#define JAXRING_PTX_KERNEL(name) void Ptx_##name(const Param* params, u64 dynamic_bytes);
#define JAXRING_PTX_WIDTHS(before, after)     \
  JAXRING_PTX_KERNEL(before##ILi0EEEv##after) \
  JAXRING_PTX_KERNEL(before##ILi1EEEv##after) \
  JAXRING_PTX_KERNEL(before##ILi2EEEv##after) \
  JAXRING_PTX_KERNEL(before##ILi4EEEv##after)
#define JAXRING_PTX_LANES(protocol)                                 \
  JAXRING_PTX_KERNEL(PlayKernelINS0_##protocol##ELi0EEEvNS0_4ArgsE) \
  JAXRING_PTX_KERNEL(PlayKernelINS0_##protocol##ELi1EEEvNS0_4ArgsE) \
  JAXRING_PTX_KERNEL(PlayKernelINS0_##protocol##ELi2EEEvNS0_4ArgsE) \
  JAXRING_PTX_KERNEL(PlayKernelINS0_##protocol##ELi4EEEvNS0_4ArgsE)
JAXRING_PTX_LANES(6Simple)
JAXRING_PTX_LANES(2LL)
JAXRING_PTX_LANES(5LL128)
JAXRING_PTX_KERNEL(EpilogueKernelINS0_5SlotsEEEvNS0_12EpilogueArgsENS0_4ArgsE)
JAXRING_PTX_KERNEL(EpilogueKernelINS0_2LLEEEvNS0_12EpilogueArgsENS0_4ArgsE)
JAXRING_PTX_WIDTHS(FusedKernel, NS0_5FusedENS0_4ArgsE)
// Of launches that copy their buffers, those of Simple and the fused ones of widths 0 and 1.
JAXRING_PTX_KERNEL(StagedKernelINS0_6SimpleELi0EEEvNS0_4ArgsE)
JAXRING_PTX_KERNEL(StagedKernelINS0_6SimpleELi1EEEvNS0_4ArgsE)
JAXRING_PTX_KERNEL(StagedFusedKernelILi0EEEvNS0_5FusedENS0_4ArgsE)
JAXRING_PTX_KERNEL(StagedFusedKernelILi1EEEvNS0_5FusedENS0_4ArgsE)
// By the numbers of the types float16, bfloat16 and float32.
#define JAXRING_PTX_SUMS(ranks)                                             \
  JAXRING_PTX_KERNEL(OneShotKernelILNS_5DTypeE11ELi##ranks##EEEvNS0_4ArgsE) \
  JAXRING_PTX_KERNEL(OneShotKernelILNS_5DTypeE12ELi##ranks##EEEvNS0_4ArgsE) \
  JAXRING_PTX_KERNEL(OneShotKernelILNS_5DTypeE13ELi##ranks##EEEvNS0_4ArgsE)
JAXRING_PTX_SUMS(2)
JAXRING_PTX_SUMS(4)
JAXRING_PTX_SUMS(8)
JAXRING_PTX_KERNEL(AnyOneShotKernelILi1EEEvNS0_4ArgsE)
JAXRING_PTX_KERNEL(AnyOneShotKernelILi2EEEvNS0_4ArgsE)
JAXRING_PTX_KERNEL(AnyOneShotKernelILi4EEEvNS0_4ArgsE)
JAXRING_PTX_KERNEL(PointToPointKernelENS0_12PointToPointENS0_4ArgsE)
JAXRING_PTX_KERNEL(ExtentsKernelENS0_6RaggedENS0_4ArgsE)
JAXRING_PTX_KERNEL(MulticastKernelENS0_9MulticastENS0_4ArgsE)
JAXRING_PTX_KERNEL(CopyBarrierKernelEbNS0_4ArgsE)

}  // namespace ptx

namespace shim {
namespace {

using Kernel = void (*)(const ptx::Param*, uint64_t);

template <class... T>
void Call(Kernel kernel, uint64_t dynamic_bytes, const T&... values) {
  const ptx::Param params[] = {{reinterpret_cast<const char*>(&values), sizeof(T)}...};
  kernel(params, dynamic_bytes);
}

#define JAXRING_PTX_OF_WIDTH(before, after)                                              \
  Kernel kernels[] = {ptx::Ptx_##before##0EEEv##after, ptx::Ptx_##before##1EEEv##after,  \
                      ptx::Ptx_##before##2EEEv##after, ptx::Ptx_##before##4EEEv##after}; \
  return kernels[WidthOf(args) == 4 ? 3 : WidthOf(args)]

void CheckStaged(bool there) {
  if (there) return;
  std::fputs("the compiler's output of this launch with copies was not translated\n", stderr);
  std::abort();
}
Kernel StagedOf(const Args& args) {
  CheckStaged(args.call.protocol == Protocol::kSimple && WidthOf(args) <= 1);
  return WidthOf(args) == 0 ? ptx::Ptx_StagedKernelINS0_6SimpleELi0EEEvNS0_4ArgsE
                            : ptx::Ptx_StagedKernelINS0_6SimpleELi1EEEvNS0_4ArgsE;
}
Kernel StagedFusedOf(const Args& args) {
  CheckStaged(WidthOf(args) <= 1);
  return WidthOf(args) == 0 ? ptx::Ptx_StagedFusedKernelILi0EEEvNS0_5FusedENS0_4ArgsE
                            : ptx::Ptx_StagedFusedKernelILi1EEEvNS0_5FusedENS0_4ArgsE;
}
Kernel SimpleOf(const Args& args) { JAXRING_PTX_OF_WIDTH(PlayKernelINS0_6SimpleELi, NS0_4ArgsE); }
Kernel LLOf(const Args& args) { JAXRING_PTX_OF_WIDTH(PlayKernelINS0_2LLELi, NS0_4ArgsE); }
Kernel LL128Of(const Args& args) { JAXRING_PTX_OF_WIDTH(PlayKernelINS0_5LL128ELi, NS0_4ArgsE); }
Kernel FusedOf(const Args& args) { JAXRING_PTX_OF_WIDTH(FusedKernelILi, NS0_5FusedENS0_4ArgsE); }

struct OneShotKernels {
  template <DType kType, int kRanks>
  constexpr Kernel Sum() const {
#define JAXRING_PTX_SUMS_OF(ranks)                                      \
  {                                                                     \
    ptx::Ptx_OneShotKernelILNS_5DTypeE11ELi##ranks##EEEvNS0_4ArgsE,     \
        ptx::Ptx_OneShotKernelILNS_5DTypeE12ELi##ranks##EEEvNS0_4ArgsE, \
        ptx::Ptx_OneShotKernelILNS_5DTypeE13ELi##ranks##EEEvNS0_4ArgsE  \
  }
    constexpr Kernel kKernels[3][3] = {JAXRING_PTX_SUMS_OF(2), JAXRING_PTX_SUMS_OF(4), JAXRING_PTX_SUMS_OF(8)};
    constexpr int kDType = static_cast<int>(kType) - 11;
    static_assert(kDType >= 0 && kDType < 3 && (kRanks == 2 || kRanks == 4 || kRanks == 8));
    return kKernels[kRanks / 4][kDType];
  }
  template <int kWiden>
  constexpr Kernel Any() const {
    constexpr Kernel kKernels[] = {ptx::Ptx_AnyOneShotKernelILi1EEEvNS0_4ArgsE,
                                   ptx::Ptx_AnyOneShotKernelILi2EEEvNS0_4ArgsE,
                                   ptx::Ptx_AnyOneShotKernelILi4EEEvNS0_4ArgsE};
    return kKernels[kWiden / 2];
  }
};

}  // namespace

void PlayTable(const Args& args, Shared&) {
  if (args.staging.any()) return Call(StagedOf(args), BulkBytes(args), args);
  switch (args.call.protocol) {
    case Protocol::kSimple:
      return Call(SimpleOf(args), BulkBytes(args), args);
    case Protocol::kLL:
      return Call(LLOf(args), 0, args);
    case Protocol::kLL128:
      return Call(LL128Of(args), 0, args);
  }
}
void PlayEpilogue(const EpilogueArgs& epilogue, const Args& args, Shared&) {
  CheckStaged(!args.staging.any());
  const int threads = static_cast<int>(Threads());
  if (args.call.protocol == Protocol::kLL) {
    return Call(ptx::Ptx_EpilogueKernelINS0_2LLEEEvNS0_12EpilogueArgsENS0_4ArgsE, EpilogueShared<LL>::BytesFor(threads),
                epilogue, args);
  }
  Call(ptx::Ptx_EpilogueKernelINS0_5SlotsEEEvNS0_12EpilogueArgsENS0_4ArgsE, EpilogueShared<Slots>::BytesFor(threads),
       epilogue, args);
}
void PlayFused(Fused fused, const Args& args, Shared&) {
  if (fused == Fused::kAllReduceOneShot) return Call(OneShotOf<Kernel>(args, OneShotKernels{}), 0, args);
  const Kernel kernel = args.staging.any() ? StagedFusedOf(args) : FusedOf(args);
  Call(kernel, WidthOf(args) == 0 ? BulkBytes(args) : 0, fused, args);
}
void PlayMulticast(const Multicast& memory, const Args& args, Shared&) {
  Call(ptx::Ptx_MulticastKernelENS0_9MulticastENS0_4ArgsE, 0, memory, args);
}
void PlayPointToPoint(const PointToPoint& message, const Args& args, Shared&) {
  Call(ptx::Ptx_PointToPointKernelENS0_12PointToPointENS0_4ArgsE, BulkBytes(args), message, args);
}
void PlayExtents(const Ragged& ragged, const Args& args, RaggedShared&) {
  Call(ptx::Ptx_ExtentsKernelENS0_6RaggedENS0_4ArgsE, 0, ragged, args);
}
void PlayCopyBarrier(bool open, const Args& args, Shared&) {
  Call(ptx::Ptx_CopyBarrierKernelEbNS0_4ArgsE, 0, open, args);
}

}  // namespace shim
}  // namespace jaxring::cuda
