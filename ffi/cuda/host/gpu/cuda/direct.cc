#include "cuda/host/gpu/cuda/driver.h"
#include "cuda/host/gpu/cuda/parts.h"

namespace jaxring::cuda {
namespace {

// Allocations of this size are not suballocated by cudaMalloc. A dma-buf consists of whole pages, and a NIC that has
// registered one allocation must not reach its neighbours.
constexpr uint64_t kUnit = uint64_t{2} << 20;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

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

class Direct final : public GpuDirect {
 public:
  std::string WhyNot(int device) override {
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
  char* Allocate(int device, uint64_t bytes) override {
    char* memory = CudaMemory().Allocate(device, RoundUp(bytes));
    ContextScope scope(device);
    // Makes copies to the memory synchronous, so that a NIC reads their bytes once the driver reports them done.
    unsigned on = 1;
    Check(
        TheDriver().cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, reinterpret_cast<CUdeviceptr>(memory)),
        "cuPointerSetAttribute(SYNC_MEMOPS)");
    return memory;
  }
  int ExportDmaBuf(int device, char* memory, uint64_t bytes) override {
    ContextScope scope(device);
    int descriptor = -1;
    Check(TheDriver().cuMemGetHandleForAddressRange(&descriptor, reinterpret_cast<CUdeviceptr>(memory), RoundUp(bytes),
                                                    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
          "cuMemGetHandleForAddressRange");
    return descriptor;
  }
  // Only devices that do not order NICs' writes by themselves are asked.
  void Flush(int device) override {
    ContextScope scope(device);
    if (Ordered(device)) return;
    Check(TheDriver().cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                 CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
          "cuFlushGPUDirectRDMAWrites");
  }
};

}  // namespace

GpuDirect& CudaDirect() {
  static auto* direct = new Direct;
  return *direct;
}

}  // namespace jaxring::cuda
