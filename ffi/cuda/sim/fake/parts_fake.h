// The parts of the fake GPU. None is ever destroyed.
#pragma once

#include "cuda/host/gpu/gpu.h"

namespace jaxring::cuda::fake {

GpuDevices& FakeDevices();
GpuMemory& FakeMemory();
GpuSharing& FakeSharing();
GpuDirect& FakeDirect();
GpuMulticast& FakeMulticast();
GpuStreams& FakeStreams();
GpuKernels& FakeKernels();

}  // namespace jaxring::cuda::fake
