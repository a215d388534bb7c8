// Gpu by the CUDA runtime. The runtime is linked statically and looks for the driver at its first call, so the module
// can be imported on machines without one.
#include "cuda/host/gpu/cuda/parts.h"

namespace jaxring::cuda {

Gpu& ThisGpu() {
  static Gpu gpu{CudaDevices(),   CudaMemory(),  CudaSharing(), CudaDirect(),
                 CudaMulticast(), CudaStreams(), CudaKernels()};
  return gpu;
}

}  // namespace jaxring::cuda
