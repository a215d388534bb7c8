// The GPUs that this process sees, and which of them address each other's memory.
#pragma once

#include <string>

#include "cuda/host/gpu/gpu_error.h"

namespace jaxring::cuda {

struct DeviceInfo {
  std::string name;
  std::string uuid;  // the same in every process and container that sees the device; without spaces
  int major = 0, minor = 0;
  int multiprocessors = 0;
  std::string busid;  // as in /sys/bus/pci; "" where it is no PCI device
};

class GpuDevices {
 public:
  virtual ~GpuDevices() = default;
  virtual int Count() = 0;  // 0 where there is no driver
  virtual DeviceInfo Info(int device) = 0;
  // Whether kernels of `device` can address memory of `peer`; true for itself. EnableAccess makes it so.
  virtual bool CanAccess(int device, int peer) = 0;
  virtual void EnableAccess(int device, int peer) = 0;
  // Whether a store of 128 bytes by a warp of `device` arrives in memory of `peer` as a whole; true for itself. NVLink
  // moves such stores whole, PCIe need not.
  virtual bool StoresWholeLines(int device, int peer) = 0;
  // Loads the kernels. To be called before the device is used.
  virtual void Prepare(int device) = 0;
};

}  // namespace jaxring::cuda
