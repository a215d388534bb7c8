// The interface between the host half of the CUDA engine and the GPUs, in parts of one idea each. gpu/cuda/ implements
// the parts by the CUDA runtime and driver. cuda/sim/fake/ implements them without a GPU: device memory is shared
// memory, and kernels run on the SIMT shim.
//
// Every function throws GpuError. A thread that captures a graph may only call GpuKernels; CopyAsync, ClearAsync,
// Record, Follow and Capturing of GpuStreams; and Find and Reaches of GpuMemory: see Service.
#pragma once

#include "cuda/host/gpu/gpu_devices.h"
#include "cuda/host/gpu/gpu_direct.h"
#include "cuda/host/gpu/gpu_kernels.h"
#include "cuda/host/gpu/gpu_memory.h"
#include "cuda/host/gpu/gpu_multicast.h"
#include "cuda/host/gpu/gpu_sharing.h"
#include "cuda/host/gpu/gpu_streams.h"

namespace jaxring::cuda {

// Who needs only one part takes that part.
struct Gpu {
  GpuDevices& devices;
  GpuMemory& memory;
  GpuSharing& sharing;
  GpuDirect& direct;
  GpuMulticast& multicast;
  GpuStreams& streams;
  GpuKernels& kernels;
};

// The implementation that this library was linked with. Never destroyed, since XLA may call at any time.
Gpu& ThisGpu();

}  // namespace jaxring::cuda
