// The interface between the host half of the CUDA engine and a GPU. gpu_cuda.cc implements it by the CUDA runtime.
// cuda/sim/fake/gpu_fake.cc implements it without a GPU: device memory is shared memory, and kernels run on the SIMT
// shim.
//
// Every function throws GpuError. A thread that captures a graph may only call CopyAsync, ClearAsync, Launch*,
// Record, Follow and Capturing: see Service.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "cuda/device/tables.h"
#include "cuda/experimental/multicast_launch.h"
#include "cuda/kernels/kernel_launch.h"
#include "cuda/kernels/messages.h"

namespace jaxring::cuda {

class GpuError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What another process of the host needs to map an allocation.
struct IpcHandle {
  std::array<char, 64> bytes;
};

// How another process of the host can map an allocation.
enum class Sharing : uint32_t {
  kNone = 0,
  kHandle,      // legacy IPC: Export and Import
  kDescriptor,  // memory of the driver's virtual memory calls: ExportDescriptor and ImportDescriptor
};

// The allocation of a pointer, or the mapping if the memory was made by the virtual memory calls. `id` is never reused
// in this process, even after a free.
struct Allocation {
  char* base = nullptr;
  uint64_t bytes = 0;
  uint64_t id = 0;
  int device = 0;
  Sharing sharing = Sharing::kNone;
};

struct DeviceInfo {
  std::string name;
  std::string uuid;  // the same in every process and container that sees the device; without spaces
  int major = 0, minor = 0;
  int multiprocessors = 0;
  std::string busid;  // as in /sys/bus/pci; "" where it is no PCI device
};

// One process's handle of a multicast object. Several GPUs bind memory to it and get an address that stands for all of
// it. All GPUs, in all processes, must be added before any memory is bound, and all memory must be bound before it is
// accessed; otherwise the driver waits for ever. The destructor frees this process's part.
class MulticastObject {
 public:
  virtual ~MulticastObject() = default;
  virtual uint64_t bytes() const = 0;  // per GPU; at least as many as requested
  virtual int Export() = 0;            // a descriptor, which the caller closes
  virtual void Add(int device) = 0;
  // Binds memory of the device and returns its ordinary address.
  virtual char* Bind(int device) = 0;
  // The multicast address of all bound memory, for multimem instructions in kernels of `device`.
  virtual char* Map(int device) = 0;
};

class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual int DeviceCount() = 0;  // 0 where there is no driver
  virtual DeviceInfo Info(int device) = 0;
  // Whether kernels of `device` can address memory of `peer`; true for itself. EnableAccess makes it so.
  virtual bool CanAccess(int device, int peer) = 0;
  virtual void EnableAccess(int device, int peer) = 0;
  // Whether a store of 128 bytes by a warp of `device` arrives in memory of `peer` as a whole; true for itself. NVLink
  // moves such stores whole, PCIe need not.
  virtual bool StoresWholeLines(int device, int peer) = 0;

  // Loads the kernels. To be called before the device is used.
  virtual void Prepare(int device) = 0;

  // Memory filled with zeros. Pinned memory has the same address on the host and on all devices.
  virtual char* Allocate(int device, uint64_t bytes) = 0;
  virtual void Free(int device, char* memory) = 0;
  // Zero-filled memory that other processes can map, by whichever way the device has. It lives until the process ends.
  virtual char* AllocateShared(int device, uint64_t bytes) = 0;
  virtual char* AllocatePinned(uint64_t bytes) = 0;
  virtual void FreePinned(char* memory) = 0;

  // Why NICs cannot address the device's memory (GPUDirect RDMA), or "" if they can.
  virtual std::string WhyNotDirect(int device) = 0;
  // Zero-filled memory of the device that can be registered with NICs.
  virtual char* AllocateDirect(int device, uint64_t bytes) = 0;
  // A descriptor of AllocateDirect's memory for a NIC's driver; the caller closes it.
  virtual int ExportDmaBuf(int device, char* memory, uint64_t bytes) = 0;
  // Makes NICs' writes to the device's memory visible to kernels that learn of them afterwards.
  virtual void FlushDirect(int device) = 0;

  virtual Allocation Find(const void* pointer) = 0;
  // Whether kernels of `device` can address the memory, which is of another device of this process. Memory of the
  // virtual memory calls is only for devices that are named for it; for all other memory EnableAccess is enough.
  virtual bool Reaches(int device, const void* pointer) = 0;
  // Names the device for the mapping of that pointer. It may wait for kernels that run, so no launch calls it.
  virtual void Grant(int device, const void* pointer) = 0;
  virtual IpcHandle Export(const Allocation& allocation) = 0;
  // Maps another process's allocation for kernels of `device`.
  virtual char* Import(int device, const IpcHandle& handle) = 0;
  // The same by a file descriptor, which the caller closes in both cases.
  virtual int ExportDescriptor(const Allocation& allocation) = 0;
  virtual char* ImportDescriptor(int device, int descriptor, uint64_t bytes) = 0;

  // Whether the driver reports multicast for the device, and this build has the kernel for it.
  virtual bool HasMulticast(int device) = 0;
  // A new object for `devices` GPUs with `bytes` each.
  virtual std::unique_ptr<MulticastObject> NewMulticast(int device, int devices, uint64_t bytes) = 0;
  // The object that another process exported, and its bytes(). The caller keeps the descriptor.
  virtual std::unique_ptr<MulticastObject> ImportMulticast(int device, int descriptor, uint64_t bytes) = 0;

  // Returns after the copy is complete. Not ordered with any stream's work.
  virtual void Copy(int device, void* to, const void* from, uint64_t bytes) = 0;
  virtual void CopyAsync(void* to, const void* from, uint64_t bytes, void* stream) = 0;
  virtual void ClearAsync(int device, void* memory, uint64_t bytes, void* stream) = 0;  // to zeros
  virtual bool Capturing(void* stream) = 0;
  // Waits for the stream's work and then copies to pinned memory. A copy to other memory of the host would hold the
  // driver's lock until the stream gets there: other threads could neither allocate nor launch what the stream's
  // kernels wait for.
  virtual void ReadBehind(void* stream, void* to, const void* from, uint64_t bytes) = 0;

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

  // A stream for work that overlaps XLA's, with a higher priority for multiprocessors.
  virtual void* NewSideStream(int device) = 0;
  // Record marks the work enqueued on `stream` so far. Follow orders later work on `stream` after the last Record
  // before this call. If one stream is being captured, Follow makes the other part of the capture, and an event must
  // join it again before the capture ends.
  virtual void* NewEvent(int device) = 0;
  virtual void Record(void* event, void* stream) = 0;
  virtual void Follow(void* stream, void* event) = 0;
  virtual void CloseEvent(int device, void* event) = 0;

  // Streams that are not XLA's, for tests and for setting up. Synchronize throws the error of a kernel that has
  // trapped.
  virtual void* NewStream(int device) = 0;
  virtual void CloseStream(int device, void* stream) = 0;
  virtual void Synchronize(int device, void* stream) = 0;
  // Captures a graph: what `enqueue` puts on the stream, and on streams that follow it and that it follows in the end.
  // Returns a function that launches the graph on the stream, for as long as that exists.
  virtual std::function<void()> Capture(int device, void* stream, const std::function<void()>& enqueue) = 0;
};

// The implementation that this library was linked with. Never destroyed, since XLA may call at any time.
Gpu& ThisGpu();

}  // namespace jaxring::cuda
