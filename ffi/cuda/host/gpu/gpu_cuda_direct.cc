#include "cuda/host/gpu/gpu_cuda_direct.h"

namespace jaxring::cuda {
namespace {

int Attribute(int device, CUdevice_attribute attribute) {
  CUdevice handle;
  int value = 0;
  Check(TheDriver().cuDeviceGet(&handle, device), "cuDeviceGet");
  Check(TheDriver().cuDeviceGetAttribute(&value, attribute, handle), "cuDeviceGetAttribute");
  return value;
}

// A NIC's write to host memory, which announces data, may become visible before its earlier writes to the GPU's memory.
// From Hopper on, the GPU's own kernels see them in order.
bool Ordered(int device) {
  return Attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
         CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

bool HostFlushes(int device) {
  return (Attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
          CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0;
}

}  // namespace

std::string WhyNotDirect(int device) {
  if (TheDriver().cuMemGetHandleForAddressRange == nullptr || TheDriver().cuFlushGPUDirectRDMAWrites == nullptr) {
    return "the driver is too old for GPUDirect RDMA";
  }
  if (Attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) == 0) {
    return "the driver reports no GPUDirect RDMA for GPU " + std::to_string(device);
  }
  if (!Ordered(device) && !HostFlushes(device)) {
    return "GPU " + std::to_string(device) + " neither orders NICs' writes nor can be asked to wait for them";
  }
  return "";
}

void OrderCopies(char* memory) {
  unsigned on = 1;
  Check(TheDriver().cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, reinterpret_cast<CUdeviceptr>(memory)),
        "cuPointerSetAttribute(SYNC_MEMOPS)");
}

int ExportDmaBuf(char* memory, uint64_t bytes) {
  int descriptor = -1;
  const uint64_t whole = (bytes + kDirectUnit - 1) / kDirectUnit * kDirectUnit;
  Check(TheDriver().cuMemGetHandleForAddressRange(&descriptor, reinterpret_cast<CUdeviceptr>(memory), whole,
                                                  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
        "cuMemGetHandleForAddressRange");
  return descriptor;
}

void FlushDirect(int device) {
  if (Ordered(device)) return;
  Check(TheDriver().cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                               CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
        "cuFlushGPUDirectRDMAWrites");
}

}  // namespace jaxring::cuda
