#include "cuda/experimental/copy_barrier_launch.h"
#include "cuda/host/gpu/cuda/driver.h"
#include "cuda/host/gpu/cuda/empty_kernel.h"
#include "cuda/host/gpu/cuda/parts.h"

namespace jaxring::cuda {
namespace {

class Kernels final : public GpuKernels {
 public:
  void Launch(int device, const Args& args, int threads, void* stream) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(cuda::Launch(args, threads, stream)), "the launch of a collective's kernel");
  }
  void LaunchEpilogue(int device, const EpilogueArgs& epilogue, const Args& args, int threads, void* stream) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(cuda::LaunchEpilogue(epilogue, args, threads, stream)),
          "the launch of a reduction's kernel with an epilogue");
  }
  void LaunchFused(int device, Fused fused, const Args& args, int threads, void* stream) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(cuda::LaunchFused(fused, args, threads, stream)),
          "the launch of a collective's fused kernel");
  }
  void LaunchBarrier(int device, bool open, const Args& args, void* stream) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(LaunchCopyBarrier(open, args, stream)), "the launch of a collective's barrier");
  }
  void LaunchMulticast(int device, const Multicast& memory, const Args& args, int threads, void* stream) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(cuda::LaunchMulticast(memory, args, threads, stream)),
          "the launch of a collective's kernel for multicast memory");
  }
  void LaunchPointToPoint(int device, const PointToPoint& message, const Args& args, int threads,
                          void* stream) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(cuda::LaunchPointToPoint(message, args, threads, stream)),
          "the launch of a message's kernel");
  }
  void LaunchExtents(int device, const Ragged& ragged, const Args& args, void* stream) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(cuda::LaunchExtents(ragged, args, stream)),
          "the launch of the kernel that reads a ragged collective's sizes");
  }
  void LaunchEmpty(int device, const Args* args, int threads, void* stream) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(cuda::LaunchEmpty(args, threads, stream)), "the launch of an empty kernel");
  }
};

}  // namespace

// With lazy loading a kernel's first launch may wait until the device is idle. That would be a deadlock if a running
// kernel waits for that launch.
void LoadAllKernels() {
  Check(static_cast<cudaError_t>(LoadKernels()), "loading the collectives' kernels");
  Check(static_cast<cudaError_t>(LoadEpilogueKernels()), "loading the kernels of reductions with an epilogue");
  Check(static_cast<cudaError_t>(LoadFusedKernels()), "loading the fused collectives' kernels");
  Check(static_cast<cudaError_t>(LoadOneShotKernels()), "loading the kernels of the one-shot all-reduce");
  Check(static_cast<cudaError_t>(LoadStagedKernels()), "loading the kernels of launches that copy their buffers");
  Check(static_cast<cudaError_t>(LoadMessageKernels()), "loading the kernels of messages");
  Check(static_cast<cudaError_t>(LoadMulticastKernel()), "loading the kernel of multicast memory");
  Check(static_cast<cudaError_t>(LoadCopyBarrier()), "loading the collectives' barriers");
}

GpuKernels& CudaKernels() {
  static auto* kernels = new Kernels;
  return *kernels;
}

}  // namespace jaxring::cuda
