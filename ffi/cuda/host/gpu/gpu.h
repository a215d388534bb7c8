// The one interface between the host half of the CUDA engine and a GPU. gpu_cuda.cc is the CUDA runtime's;
// cuda/sim/fake/gpu_fake.cc is a machine without a GPU, whose device memory is shared memory and whose kernels run on
// the SIMT shim.
//
// Every function throws GpuError. None but CopyAsync, ClearAsync, Launch*, Guard, Record, Follow and Capturing may be
// called by a thread that captures a graph: see Service.
#pragma once

#include <array>
#include <cstdint>
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

// By what another process of the host can map an allocation.
enum class Sharing : uint32_t {
  kNone = 0,
  kHandle,      // legacy IPC: Export and Import
  kDescriptor,  // memory of the driver's virtual memory calls: ExportDescriptor and ImportDescriptor
};

// The allocation behind a pointer, or, of memory that was put together by the virtual memory calls, the one mapping.
// `id` is never used again in this process, also not after a free.
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

// What several GPUs bind memory to, and get addresses from that stand for all of it: as one process holds it. Every GPU
// is added, in whichever process, before any memory is bound, and all is bound before it is accessed; a driver waits
// for ever where that is not so. Its end gives back what this process has of it.
class MulticastObject {
 public:
  virtual ~MulticastObject() = default;
  virtual uint64_t bytes() const = 0;  // of each GPU: at least what was asked for
  virtual int Export() = 0;            // a descriptor, which the caller closes
  virtual void Add(int device) = 0;
  // Memory of the device at its own address.
  virtual char* Bind(int device) = 0;
  // All that was bound, for multimem instructions of kernels of `device`.
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

  // Before anything else is done with a device: loads whatever is to be launched there.
  virtual void Prepare(int device) = 0;

  // Zeros. Pinned memory has the same address on the host and on all devices.
  virtual char* Allocate(int device, uint64_t bytes) = 0;
  virtual void Free(int device, char* memory) = 0;
  // Zeros that other processes can map, in whatever way there is here; they stay until the process ends.
  virtual char* AllocateShared(int device, uint64_t bytes) = 0;
  virtual char* AllocatePinned(uint64_t bytes) = 0;
  virtual void FreePinned(char* memory) = 0;

  // Why NICs cannot address the device's memory (GPUDirect RDMA), "" where they can.
  virtual std::string WhyNotDirect(int device) = 0;
  // Zeros of the device that NICs can be told of.
  virtual char* AllocateDirect(int device, uint64_t bytes) = 0;
  // A descriptor of AllocateDirect's memory for a NIC's driver; the caller closes it.
  virtual int ExportDmaBuf(int device, char* memory, uint64_t bytes) = 0;
  // What NICs have written to the device's memory is seen by kernels that learn of it after this.
  virtual void FlushDirect(int device) = 0;

  virtual Allocation Find(const void* pointer) = 0;
  virtual IpcHandle Export(const Allocation& allocation) = 0;
  // Maps another process's allocation for kernels of `device`.
  virtual char* Import(int device, const IpcHandle& handle) = 0;
  // The same by a file descriptor, which the caller closes in both cases.
  virtual int ExportDescriptor(const Allocation& allocation) = 0;
  virtual char* ImportDescriptor(int device, int descriptor, uint64_t bytes) = 0;

  // Whether the driver reports multicast for the device, and this build has the kernel for it.
  virtual bool HasMulticast(int device) = 0;
  // For so many GPUs, each with as many bytes.
  virtual std::unique_ptr<MulticastObject> NewMulticast(int device, int devices, uint64_t bytes) = 0;
  // What another process exported, with its bytes(); the descriptor stays the caller's.
  virtual std::unique_ptr<MulticastObject> ImportMulticast(int device, int descriptor, uint64_t bytes) = 0;

  // Returns when the bytes are there. Not ordered after any stream's work.
  virtual void Copy(int device, void* to, const void* from, uint64_t bytes) = 0;
  virtual void CopyAsync(void* to, const void* from, uint64_t bytes, void* stream) = 0;
  virtual void ClearAsync(int device, void* memory, uint64_t bytes, void* stream) = 0;  // to zeros
  virtual bool Capturing(void* stream) = 0;
  // Copies to the host what the stream has written by then: waits for the stream.
  virtual void ReadBehind(void* stream, void* to, const void* from, uint64_t bytes) = 0;

  virtual void Launch(int device, const Args& args, int threads, void* stream) = 0;
  virtual void LaunchFused(int device, Fused fused, const Args& args, int threads, void* stream) = 0;
  // A barrier of a collective whose bytes are copied: see copies.h.
  virtual void LaunchBarrier(int device, bool open, const Args& args, void* stream) = 0;
  virtual void LaunchMulticast(int device, const Multicast& memory, const Args& args, int threads, void* stream) = 0;
  virtual void LaunchMail(int device, const Mail& mail, const Args& args, int threads, void* stream) = 0;
  virtual void LaunchExtents(int device, const Ragged& ragged, const Args& args, void* stream) = 0;
  // Ends the stream with an error if a fault stands in `status` by then, before anything behind it runs.
  virtual void Guard(int device, const Status* status, void* stream) = 0;

  // A stream for what goes on beside XLA's work, and goes first where both wait for multiprocessors.
  virtual void* NewSideStream(int device) = 0;
  // Events mark how far a stream has come. Record: what was enqueued on `stream` so far. Follow: what is enqueued on
  // `stream` from now on comes behind what was recorded last before this call. A capture of the one stream takes in the
  // other, which must come back to it by an event before the capture ends.
  virtual void* NewEvent(int device) = 0;
  virtual void Record(void* event, void* stream) = 0;
  virtual void Follow(void* stream, void* event) = 0;

  // For tests and connecting: streams that are not XLA's. Synchronize throws what a guard raised.
  virtual void* NewStream(int device) = 0;
  virtual void CloseStream(int device, void* stream) = 0;
  virtual void Synchronize(int device, void* stream) = 0;
};

// The one that this library was linked with. Never destroyed: XLA may call at any time.
Gpu& ThisGpu();

}  // namespace jaxring::cuda
