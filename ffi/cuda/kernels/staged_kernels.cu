// The kernels of launches that copy their buffers (staging.h), and their launch.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/device/loading.h"
#include "cuda/kernels/direct.h"
#include "cuda/kernels/epilogue_slices.h"
#include "cuda/kernels/kernel_launch.h"
#include "cuda/kernels/lane_kernels.h"

namespace jaxring::cuda {
namespace {

// Of a block at most: the copies take registers, too, and such launches are rare.
constexpr int kStagedThreads = ThreadsAtMost(4);

template <class Protocol, int kWiden>
__global__ void __launch_bounds__(kStagedThreads, 1) StagedKernel(const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayLane<Protocol, kWiden, true>(args, shared);
}

template <int kWiden>
__global__ void __launch_bounds__(kStagedThreads, 1) StagedFusedKernel(Fused fused, const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayFused<kWiden, true>(fused, args, shared);
}

template <class Protocol>
__global__ void __launch_bounds__(kStagedThreads, 1)
    StagedEpilogueKernel(const __grid_constant__ EpilogueArgs epilogue, const __grid_constant__ Args args) {
  __shared__ Shared shared;
  PlayEpilogueLane<Protocol, true>(epilogue, args, shared);
}

#if defined(JAXRING_FEW_STAGED)
// Tests of the compiler's output play these.
const void* const kPlayed[] = {
    reinterpret_cast<const void*>(&StagedKernel<Simple, 0>), reinterpret_cast<const void*>(&StagedKernel<Simple, 1>),
    reinterpret_cast<const void*>(&StagedFusedKernel<0>), reinterpret_cast<const void*>(&StagedFusedKernel<1>)};

}  // namespace
#else
template <template <int> class Of>
const void* OfWidth(uint32_t width) {
  return width == 0 ? Of<0>::Kernel() : width == 1 ? Of<1>::Kernel() : width == 2 ? Of<2>::Kernel() : Of<4>::Kernel();
}
template <int kWiden>
struct BySimple {
  static const void* Kernel() { return reinterpret_cast<const void*>(&StagedKernel<Simple, kWiden>); }
};
template <int kWiden>
struct ByLL {
  static const void* Kernel() { return reinterpret_cast<const void*>(&StagedKernel<LL, kWiden>); }
};
template <int kWiden>
struct ByFused {
  static const void* Kernel() { return reinterpret_cast<const void*>(&StagedFusedKernel<kWiden>); }
};
template <class Protocol>
const void* ByEpilogue() {
  return reinterpret_cast<const void*>(&StagedEpilogueKernel<Protocol>);
}

}  // namespace

int LaunchStaged(const Args& args, int threads, void* stream) {
  // It serves schedules that use messages alone: no other rank accesses their buffers.
  if (!HasFurtherKernels(args.call.protocol)) return cudaErrorInvalidValue;
  const uint32_t width = WidthOf(args);
  const bool lines = args.call.protocol == Protocol::kLL;
  void* parameters[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernel(lines ? OfWidth<ByLL>(width) : OfWidth<BySimple>(width), dim3(args.shape.lanes),
                          dim3(std::min(threads, kStagedThreads)), parameters, lines ? 0 : BulkBytes(args),
                          static_cast<cudaStream_t>(stream));
}

int LaunchStagedFused(Fused fused, const Args& args, int threads, void* stream) {
  const uint32_t width = WidthOf(args);
  void* parameters[] = {&fused, const_cast<Args*>(&args)};
  return cudaLaunchKernel(OfWidth<ByFused>(width), dim3(args.shape.lanes), dim3(std::min(threads, kStagedThreads)),
                          parameters, width == 0 ? BulkBytes(args) : 0, static_cast<cudaStream_t>(stream));
}

int LaunchStagedEpilogue(const EpilogueArgs& epilogue, const Args& args, int threads, void* stream) {
  const bool lines = args.call.protocol == Protocol::kLL;
  threads = std::min(threads, kStagedThreads);
  const uint64_t bytes = lines ? EpilogueShared<LL>::BytesFor(threads) : EpilogueShared<Slots>::BytesFor(threads);
  void* parameters[] = {const_cast<EpilogueArgs*>(&epilogue), const_cast<Args*>(&args)};
  return cudaLaunchKernel(lines ? ByEpilogue<LL>() : ByEpilogue<Slots>(), dim3(args.shape.lanes), dim3(threads),
                          parameters, bytes, static_cast<cudaStream_t>(stream));
}

int LoadStagedKernels() {
  for (uint32_t width : {0, 1, 2, 4}) {
    if (const cudaError_t error = Load({OfWidth<BySimple>(width), OfWidth<ByFused>(width)}, sizeof(BulkShared))) {
      return error;
    }
    if (const cudaError_t error = Load({OfWidth<ByLL>(width)})) return error;
  }
  if (const cudaError_t error = Load({ByEpilogue<Slots>()}, EpilogueShared<Slots>::BytesFor(kStagedThreads))) {
    return error;
  }
  return Load({ByEpilogue<LL>()}, EpilogueShared<LL>::BytesFor(kStagedThreads));
}
#endif

}  // namespace jaxring::cuda
