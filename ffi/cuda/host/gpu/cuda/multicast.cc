// Multicast objects of the driver.
#include <map>

#include "cuda/host/gpu/cuda/driver.h"
#include "cuda/host/gpu/cuda/parts.h"
#include "cuda/host/gpu/cuda/virtual_memory.h"

namespace jaxring::cuda {
namespace {

CUdevice Ordinal(int device) {
  CUdevice handle;
  Check(TheDriver().cuDeviceGet(&handle, device), "cuDeviceGet");
  return handle;
}

class CudaMulticastObject final : public MulticastObject {
 public:
  explicit CudaMulticastObject(uint64_t bytes) : bytes_(bytes) {}
  // In the order that the driver requires: mappings, bindings, memory, the object.
  ~CudaMulticastObject() override {
    for (auto& [device, binding] : bindings_) {
      try {
        const ContextScope scope(device);
        if (binding.all != nullptr) UnmapMemory(binding.all, bytes_);
        if (binding.bound) TheDriver().cuMulticastUnbind(object.value, Ordinal(device), 0, bytes_);
        if (binding.own != nullptr) UnmapMemory(binding.own, binding.own_bytes);
      } catch (const GpuError&) {  // the context is lost, which frees its memory
      }
    }
  }

  uint64_t bytes() const override { return bytes_; }
  int Export() override { return ExportHandle(object); }
  void Add(int device) override {
    const ContextScope scope(device);
    Check(TheDriver().cuMulticastAddDevice(object.value, Ordinal(device)), "cuMulticastAddDevice");
  }
  char* Bind(int device) override {
    const ContextScope scope(device);
    Binding& binding = bindings_[device];
    binding.own_bytes = bytes_;
    CreateMemory(device, &binding.own_bytes, &binding.memory);
    Check(TheDriver().cuMulticastBindMem(object.value, 0, binding.memory.value, 0, bytes_, 0), "cuMulticastBindMem");
    binding.bound = true;
    return binding.own = MapMemory({device}, binding.memory, binding.own_bytes);
  }
  char* Map(int device) override {
    const ContextScope scope(device);
    Binding& binding = bindings_[device];
    return binding.all = MapMemory({device}, object, bytes_, Unit(CU_MULTICAST_GRANULARITY_MINIMUM, bytes_));
  }

  // Sizes must be multiples of this.
  static uint64_t Unit(CUmulticastGranularity_flags which, uint64_t bytes, unsigned devices = 2) {
    const CUmulticastObjectProp properties = PropertiesOf(devices, bytes);
    size_t unit = 0;
    Check(TheDriver().cuMulticastGetGranularity(&unit, &properties, which), "cuMulticastGetGranularity");
    return unit;
  }
  static CUmulticastObjectProp PropertiesOf(unsigned devices, uint64_t bytes) {
    CUmulticastObjectProp properties{};
    properties.numDevices = devices;
    properties.size = bytes;
    properties.handleTypes = kHandleType;
    return properties;
  }

  MemoryHandle object;

 private:
  struct Binding {
    MemoryHandle memory;
    char *own = nullptr, *all = nullptr;
    uint64_t own_bytes = 0;
    bool bound = false;
  };
  uint64_t bytes_;
  std::map<int, Binding> bindings_;
};

class MulticastObjects final : public GpuMulticast {
 public:
  bool Supported(int device) override {
    return MulticastCompiled() && TheDriver().cuMulticastCreate != nullptr &&
           Supports(device, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
  }
  std::unique_ptr<MulticastObject> New(int device, int devices, uint64_t bytes) override {
    ContextScope scope(device);
    // The recommended granularity may be far larger than `bytes`; then the minimum is used.
    uint64_t unit = CudaMulticastObject::Unit(CU_MULTICAST_GRANULARITY_RECOMMENDED, bytes, devices);
    if (unit > bytes) unit = CudaMulticastObject::Unit(CU_MULTICAST_GRANULARITY_MINIMUM, bytes, devices);
    auto made = std::make_unique<CudaMulticastObject>((bytes + unit - 1) / unit * unit);
    const CUmulticastObjectProp properties = CudaMulticastObject::PropertiesOf(devices, made->bytes());
    Check(TheDriver().cuMulticastCreate(&made->object.value, &properties), "cuMulticastCreate");
    return made;
  }
  std::unique_ptr<MulticastObject> Import(int device, int descriptor, uint64_t bytes) override {
    ContextScope scope(device);
    auto made = std::make_unique<CudaMulticastObject>(bytes);
    ImportHandle(descriptor, &made->object);
    return made;
  }
};

}  // namespace

GpuMulticast& CudaMulticast() {
  static auto* multicast = new MulticastObjects;
  return *multicast;
}

}  // namespace jaxring::cuda
