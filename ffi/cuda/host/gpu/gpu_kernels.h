// The kernels, each put on a stream of a device that GpuDevices::Prepare has prepared.
#pragma once

#include "cuda/device/tables.h"
#include "cuda/experimental/multicast_launch.h"
#include "cuda/host/gpu/gpu_error.h"
#include "cuda/kernels/kernel_launch.h"
#include "cuda/kernels/messages.h"

namespace jaxring::cuda {

class GpuKernels {
 public:
  virtual ~GpuKernels() = default;
  virtual void Launch(int device, const Args& args, int threads, void* stream) = 0;
  virtual void LaunchEpilogue(int device, const EpilogueArgs& epilogue, const Args& args, int threads,
                              void* stream) = 0;
  virtual void LaunchFused(int device, Fused fused, const Args& args, int threads, void* stream) = 0;
  // An epoch barrier of a collective that copy engines run: see copies.h.
  virtual void LaunchBarrier(int device, bool open, const Args& args, void* stream) = 0;
  virtual void LaunchMulticast(int device, const Multicast& memory, const Args& args, int threads, void* stream) = 0;
  virtual void LaunchPointToPoint(int device, const PointToPoint& message, const Args& args, int threads,
                                  void* stream) = 0;
  virtual void LaunchExtents(int device, const Ragged& ragged, const Args& args, void* stream) = 0;
  // A kernel that does nothing, to measure what any launch takes: of one thread where `args` is null, otherwise of as
  // many blocks and as large parameters as a collective's.
  virtual void LaunchEmpty(int device, const Args* args, int threads, void* stream) = 0;
};

}  // namespace jaxring::cuda
