// The CUDA driver's functions, looked up when they are first needed so that the module imports on machines without a
// driver, and the contexts that this library works in.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/host/gpu/gpu.h"

namespace jaxring::cuda {

void Check(cudaError_t error, const char* what);
void Check(CUresult error, const char* what);
#define JAXRING_CUDA(call) ::jaxring::cuda::Check(call, #call)

#define JAXRING_DRIVER_FUNCTIONS(F) \
  F(cuCtxGetCurrent)                \
  F(cuCtxPopCurrent)                \
  F(cuCtxPushCurrent)               \
  F(cuDeviceGet)                    \
  F(cuDeviceGetAttribute)           \
  F(cuDevicePrimaryCtxRetain)       \
  F(cuFlushGPUDirectRDMAWrites)     \
  F(cuGetErrorString)               \
  F(cuMemAddressFree)               \
  F(cuMemAddressReserve)            \
  F(cuMemCreate)                    \
  F(cuMemExportToShareableHandle)   \
  F(cuMemGetAllocationGranularity)  \
  F(cuMemGetHandleForAddressRange)  \
  F(cuMemImportFromShareableHandle) \
  F(cuMemMap)                       \
  F(cuMemRelease)                   \
  F(cuMemRetainAllocationHandle)    \
  F(cuMemSetAccess)                 \
  F(cuMemUnmap)                     \
  F(cuMulticastAddDevice)           \
  F(cuMulticastBindMem)             \
  F(cuMulticastCreate)              \
  F(cuMulticastGetGranularity)      \
  F(cuMulticastUnbind)              \
  F(cuPointerGetAttributes)         \
  F(cuPointerSetAttribute)          \
  F(cuThreadExchangeStreamCaptureMode)

struct Driver {
#define JAXRING_MEMBER(name) decltype(&::name) name;
  JAXRING_DRIVER_FUNCTIONS(JAXRING_MEMBER)
#undef JAXRING_MEMBER
};
// Throws GpuError where the driver lacks one.
const Driver& TheDriver();

// Makes a device's primary context current until its end, which is the one that XLA uses, and leaves the thread as it
// was. The driver's stack is used since cudaSetDevice has no way back to "none": a thread of ours would end up on
// device 0, and every process of a machine would make a context there.
//
// Until its end this thread may also do what a capture that is under way in another thread would forbid or break, such
// as to allocate.
class ContextScope {
 public:
  explicit ContextScope(int device);
  // Whatever is current; where nothing is, a context that this library has used before, or device 0's.
  ContextScope();
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

 private:
  void Relax();
  bool pushed_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace jaxring::cuda
