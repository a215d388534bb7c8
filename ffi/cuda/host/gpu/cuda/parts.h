// The parts of Gpu by the CUDA runtime and driver. They keep nothing of their own and are never destroyed.
#pragma once

#include "cuda/host/gpu/gpu.h"

namespace jaxring::cuda {

GpuDevices& CudaDevices();
GpuMemory& CudaMemory();
GpuSharing& CudaSharing();
GpuDirect& CudaDirect();
GpuMulticast& CudaMulticast();
GpuStreams& CudaStreams();
GpuKernels& CudaKernels();

// Loads the kernels of all collectives and messages into the current context. LaunchEmpty's are not among them.
void LoadAllKernels();

}  // namespace jaxring::cuda
