#include <cctype>
#include <cstdio>

#include "cuda/host/gpu/cuda/driver.h"
#include "cuda/host/gpu/cuda/parts.h"

namespace jaxring::cuda {
namespace {

class Devices final : public GpuDevices {
 public:
  int Count() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
  }
  DeviceInfo Info(int device) override {
    cudaDeviceProp properties;
    JAXRING_CUDA(cudaGetDeviceProperties(&properties, device));
    std::string uuid = "GPU-";
    for (char c : properties.uuid.bytes) {
      char text[3];
      std::snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(c));
      uuid += text;
    }
    char busid[32];
    JAXRING_CUDA(cudaDeviceGetPCIBusId(busid, sizeof busid, device));
    for (char* c = busid; *c != 0; ++c) *c = static_cast<char>(std::tolower(*c));
    return {properties.name, uuid, properties.major, properties.minor, properties.multiProcessorCount, busid};
  }
  bool CanAccess(int device, int peer) override {
    if (device == peer) return true;
    int can = 0;
    JAXRING_CUDA(cudaDeviceCanAccessPeer(&can, device, peer));
    return can != 0;
  }
  // The driver names no kind of link. Native atomics are what NVLink has and PCIe lacks.
  bool StoresWholeLines(int device, int peer) override {
    if (device == peer) return true;
    int native = 0;
    JAXRING_CUDA(cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, device, peer));
    return native != 0;
  }
  void EnableAccess(int device, int peer) override {
    if (device == peer) return;
    ContextScope scope(device);
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
      return;
    }
    Check(error, "cudaDeviceEnablePeerAccess");
  }
  void Prepare(int device) override {
    ContextScope scope(device);
    LoadAllKernels();
    CopyStream(device);
  }
};

}  // namespace

GpuDevices& CudaDevices() {
  static auto* devices = new Devices;
  return *devices;
}

}  // namespace jaxring::cuda
