// Implements Gpu by the CUDA runtime. The runtime is linked statically and looks for the driver at its first call, so
// the module can be imported on machines without one.
#include <cctype>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "cuda/experimental/copy_barrier_launch.h"
#include "cuda/host/gpu/empty_kernel.h"
#include "cuda/host/gpu/gpu_cuda_direct.h"
#include "cuda/host/gpu/gpu_cuda_driver.h"
#include "cuda/host/gpu/gpu_cuda_virtual.h"

namespace jaxring::cuda {
namespace {

cudaStream_t ToStream(void* stream) { return static_cast<cudaStream_t>(stream); }

class CudaGpu final : public Gpu {
 public:
  int DeviceCount() override {
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

  // With lazy loading a kernel's first launch may wait until the device is idle. That would be a deadlock if a running
  // kernel waits for that launch.
  void Prepare(int device) override {
    ContextScope scope(device);
    Check(static_cast<cudaError_t>(LoadKernels()), "loading the collectives' kernels");
    Check(static_cast<cudaError_t>(LoadEpilogueKernels()), "loading the kernels of reductions with an epilogue");
    Check(static_cast<cudaError_t>(LoadFusedKernels()), "loading the fused collectives' kernels");
    Check(static_cast<cudaError_t>(LoadOneShotKernels()), "loading the kernels of the one-shot all-reduce");
    Check(static_cast<cudaError_t>(LoadStagedKernels()), "loading the kernels of launches that copy their buffers");
    Check(static_cast<cudaError_t>(LoadMessageKernels()), "loading the kernels of messages");
    Check(static_cast<cudaError_t>(LoadMulticastKernel()), "loading the kernel of multicast memory");
    Check(static_cast<cudaError_t>(LoadCopyBarrier()), "loading the collectives' barriers");
    CopyStream(device);
  }

  char* Allocate(int device, uint64_t bytes) override {
    ContextScope scope(device);
    void* memory = nullptr;
    JAXRING_CUDA(cudaMalloc(&memory, bytes));
    cudaStream_t stream = CopyStream(device);
    JAXRING_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
    JAXRING_CUDA(cudaStreamSynchronize(stream));
    return static_cast<char*>(memory);
  }
  void Free(int device, char* memory) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaFree(memory));
  }
  // Descriptors first: they need neither a common IPC namespace nor, as legacy IPC does, whole blocks of cudaMalloc.
  char* AllocateShared(int device, uint64_t bytes) override {
    ContextScope scope(device);
    std::vector<int> users;
    for (int user = 0; user < DeviceCount(); ++user) {
      if (CanAccess(user, device)) users.push_back(user);
    }
    char* memory = AllocateVirtual(device, users, bytes);
    // cudaMalloc cuts smaller allocations from blocks of this size, which IPC shares and maps as a whole.
    constexpr uint64_t kBlock = uint64_t{2} << 20;
    if (memory == nullptr) return Allocate(device, (bytes + kBlock - 1) / kBlock * kBlock);
    cudaStream_t stream = CopyStream(device);
    JAXRING_CUDA(cudaMemsetAsync(memory, 0, bytes, stream));
    JAXRING_CUDA(cudaStreamSynchronize(stream));
    return memory;
  }
  char* AllocatePinned(uint64_t bytes) override {
    ContextScope scope;
    void* memory = nullptr;
    JAXRING_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    std::memset(memory, 0, bytes);
    return static_cast<char*>(memory);
  }
  void FreePinned(char* memory) override {
    ContextScope scope;
    JAXRING_CUDA(cudaFreeHost(memory));
  }

  std::string WhyNotDirect(int device) override { return cuda::WhyNotDirect(device); }
  char* AllocateDirect(int device, uint64_t bytes) override {
    char* memory = Allocate(device, (bytes + kDirectUnit - 1) / kDirectUnit * kDirectUnit);
    ContextScope scope(device);
    OrderCopies(memory);
    return memory;
  }
  int ExportDmaBuf(int device, char* memory, uint64_t bytes) override {
    ContextScope scope(device);
    return cuda::ExportDmaBuf(memory, bytes);
  }
  void FlushDirect(int device) override {
    ContextScope scope(device);
    cuda::FlushDirect(device);
  }

  Allocation Find(const void* pointer) override {
    ContextScope scope;
    return FindAllocation(pointer);
  }
  bool Reaches(int device, const void* pointer) override {
    ContextScope scope;
    return cuda::Reaches(device, pointer);
  }
  void Grant(int device, const void* pointer) override {
    ContextScope scope(device);
    cuda::Grant(device, pointer);
  }
  IpcHandle Export(const Allocation& allocation) override {
    ContextScope scope(allocation.device);
    cudaIpcMemHandle_t handle;
    JAXRING_CUDA(cudaIpcGetMemHandle(&handle, allocation.base));
    IpcHandle copy;
    static_assert(sizeof handle == sizeof copy.bytes);
    std::memcpy(copy.bytes.data(), &handle, sizeof handle);
    return copy;
  }
  char* Import(int device, const IpcHandle& handle) override {
    ContextScope scope(device);
    cudaIpcMemHandle_t copy;
    std::memcpy(&copy, handle.bytes.data(), sizeof copy);
    void* memory = nullptr;
    JAXRING_CUDA(cudaIpcOpenMemHandle(&memory, copy, cudaIpcMemLazyEnablePeerAccess));
    return static_cast<char*>(memory);
  }

  int ExportDescriptor(const Allocation& allocation) override {
    ContextScope scope(allocation.device);
    if (Find(allocation.base).id != allocation.id) throw GpuError("the memory has been freed");
    return cuda::ExportDescriptor(allocation.base);
  }
  char* ImportDescriptor(int device, int descriptor, uint64_t bytes) override {
    ContextScope scope(device);
    return cuda::ImportDescriptor(device, descriptor, bytes);
  }

  bool HasMulticast(int device) override {
    return MulticastCompiled() && TheDriver().cuMulticastCreate != nullptr &&
           Supports(device, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
  }
  std::unique_ptr<MulticastObject> NewMulticast(int device, int devices, uint64_t bytes) override {
    ContextScope scope(device);
    return CreateMulticast(devices, bytes);
  }
  std::unique_ptr<MulticastObject> ImportMulticast(int device, int descriptor, uint64_t bytes) override {
    ContextScope scope(device);
    return OpenMulticast(descriptor, bytes);
  }

  void Copy(int device, void* to, const void* from, uint64_t bytes) override {
    ContextScope scope(device);
    cudaStream_t stream = CopyStream(device);
    JAXRING_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    JAXRING_CUDA(cudaStreamSynchronize(stream));
  }
  void CopyAsync(void* to, const void* from, uint64_t bytes, void* stream) override {
    if (bytes == 0) return;  // a graph cannot contain an empty copy
    ContextScope scope;
    JAXRING_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ToStream(stream)));
  }
  void ClearAsync(int device, void* memory, uint64_t bytes, void* stream) override {
    if (bytes == 0) return;
    ContextScope scope(device);
    JAXRING_CUDA(cudaMemsetAsync(memory, 0, bytes, ToStream(stream)));
  }
  bool Capturing(void* stream) override {
    ContextScope scope;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    JAXRING_CUDA(cudaStreamIsCapturing(ToStream(stream), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  void ReadBehind(void* stream, void* to, const void* from, uint64_t bytes) override {
    ContextScope scope;
    JAXRING_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, ToStream(stream)));
    JAXRING_CUDA(cudaStreamSynchronize(ToStream(stream)));
  }

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

  void* NewSideStream(int device) override {
    ContextScope scope(device);
    int least, greatest;
    JAXRING_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream;
    JAXRING_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    return stream;
  }
  void* NewEvent(int device) override {
    ContextScope scope(device);
    cudaEvent_t event;
    JAXRING_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void Record(void* event, void* stream) override {
    ContextScope scope;
    JAXRING_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(event), ToStream(stream)));
  }
  void Follow(void* stream, void* event) override {
    ContextScope scope;
    JAXRING_CUDA(cudaStreamWaitEvent(ToStream(stream), static_cast<cudaEvent_t>(event), cudaEventWaitDefault));
  }
  void CloseEvent(int device, void* event) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
  }

  void* NewStream(int device) override {
    ContextScope scope(device);
    cudaStream_t stream;
    JAXRING_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void CloseStream(int device, void* stream) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaStreamDestroy(ToStream(stream)));
  }
  void Synchronize(int device, void* stream) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaStreamSynchronize(ToStream(stream)));
  }
  std::function<void()> Capture(int device, void* stream, const std::function<void()>& enqueue) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaStreamBeginCapture(ToStream(stream), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      if (cudaStreamEndCapture(ToStream(stream), &graph) == cudaSuccess) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    JAXRING_CUDA(cudaStreamEndCapture(ToStream(stream), &graph));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    Check(error, "the instantiation of a graph");
    // A graph that runs is destroyed when it has ended.
    const std::shared_ptr<void> owner(executable, [device](void* of) {
      try {
        ContextScope scope(device);
        cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(of));
      } catch (const GpuError&) {  // the context is lost, and the graph with it
      }
    });
    return [device, stream, owner] {
      ContextScope scope(device);
      JAXRING_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(owner.get()), ToStream(stream)));
    };
  }

 private:
  // Not the default stream, which would wait for XLA's streams.
  cudaStream_t CopyStream(int device) {
    MutexLock lock(mutex_);
    cudaStream_t& stream = copy_streams_ JAXRING_GUARDED_BY(mutex_)[device];
    if (stream == nullptr) JAXRING_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }

  Mutex mutex_;
  std::map<int, cudaStream_t> copy_streams_;
};

}  // namespace

Gpu& ThisGpu() {
  static auto* gpu = new CudaGpu;
  return *gpu;
}

}  // namespace jaxring::cuda
