// The CUDA driver's functions, looked up at first use so that the module can be imported without a driver, and the
// contexts and streams in which this library works.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/host/gpu/gpu_error.h"

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
  F(cuGetErrorString)               \
  F(cuMemAddressFree)               \
  F(cuMemAddressReserve)            \
  F(cuMemCreate)                    \
  F(cuMemExportToShareableHandle)   \
  F(cuMemGetAccess)                 \
  F(cuMemGetAddressRange)           \
  F(cuMemGetAllocationGranularity)  \
  F(cuMemImportFromShareableHandle) \
  F(cuMemMap)                       \
  F(cuMemRelease)                   \
  F(cuMemRetainAllocationHandle)    \
  F(cuMemSetAccess)                 \
  F(cuMemUnmap)                     \
  F(cuPointerGetAttribute)          \
  F(cuPointerGetAttributes)         \
  F(cuPointerSetAttribute)          \
  F(cuThreadExchangeStreamCaptureMode)

// Of NVLS and GPUDirect RDMA: nullptr where the driver is older.
#define JAXRING_OPTIONAL_DRIVER_FUNCTIONS(F) \
  F(cuFlushGPUDirectRDMAWrites)              \
  F(cuMemGetHandleForAddressRange)           \
  F(cuMulticastAddDevice)                    \
  F(cuMulticastBindMem)                      \
  F(cuMulticastCreate)                       \
  F(cuMulticastGetGranularity)               \
  F(cuMulticastUnbind)

struct Driver {
#define JAXRING_MEMBER(name) decltype(&::name) name;
  JAXRING_DRIVER_FUNCTIONS(JAXRING_MEMBER)
  JAXRING_OPTIONAL_DRIVER_FUNCTIONS(JAXRING_MEMBER)
#undef JAXRING_MEMBER
};
// Throws GpuError if the driver lacks one that is not optional.
const Driver& TheDriver();

// Makes a device's primary context, which XLA uses, current for its lifetime, and then restores the thread's. It uses
// the driver's context stack because cudaSetDevice cannot return to "no device": threads of ours would end up on device
// 0, and every process of a machine would make a context there.
//
// For its lifetime the thread may also make calls, such as allocations, that a graph capture in another thread would
// forbid or that would break it.
class ContextScope {
 public:
  explicit ContextScope(int device);
  // Uses the current context; if there is none, a context that this library has used before, or device 0's.
  ContextScope();
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;

 private:
  void Relax();
  bool pushed_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// The stream for this library's own copies, which it waits for: there is one for each
// device, made at the first call. The device's context must be current. Not the default stream, which would wait for
// XLA's streams.
cudaStream_t CopyStream(int device);

}  // namespace jaxring::cuda
