#include "cuda/sim/fake/gpu_fake.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "cuda/experimental/copy_barrier.h"
#include "cuda/sim/fake/machine.h"
#include "cuda/sim/fake/multicast_fake.h"

namespace jaxring::cuda::fake {
namespace {

struct Handle {
  int32_t pid, fd;
  uint64_t bytes;
};

// Set in a thread that captures: calls that CUDA may refuse there are refused.
thread_local bool capturing = false;

// What launches, allocations and copies need for a moment, and a copy behind a stream's work to memory that is not
// pinned as long as that lasts.
std::mutex driver;
std::atomic<int> readers{0};

std::atomic<bool> hold_allocations{false};
std::atomic<int> held_allocations{0};

void WaitWhileHeld() {
  ++held_allocations;
  hold_allocations.wait(true);
  --held_allocations;
}

void EnterDriver() { std::lock_guard lock(driver); }

void CheckNotCapturing() {
  EnterDriver();
  if (capturing) throw GpuError("operation not permitted when stream is capturing");
}

class FakeGpu final : public Gpu {
 public:
  int DeviceCount() override { return options().devices; }
  DeviceInfo Info(int device) override { return {"fake", "fake-" + std::to_string(device), 9, 0, 8, ""}; }
  bool CanAccess(int device, int peer) override { return device == peer || !options().no_peer_access; }
  bool StoresWholeLines(int device, int peer) override { return CanAccess(device, peer); }
  void EnableAccess(int device, int peer) override {
    if (!CanAccess(device, peer)) throw GpuError("no peer access");
  }

  void Prepare(int device) override { prepared_ |= 1u << device; }

  char* Allocate(int device, uint64_t bytes) override { return AllocateAs(device, bytes, Sharing::kHandle); }
  char* AllocateShared(int device, uint64_t bytes) override {
    const bool own_device_only = options().own_device_only;
    const uint64_t part = options().mapping_bytes;
    if (part == 0) return AllocateAs(device, bytes, Sharing::kDescriptor, own_device_only);
    char* memory = Mapped(nullptr, bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    for (uint64_t at = 0; at < bytes; at += part) {
      AllocateAs(device, std::min(part, bytes - at), Sharing::kDescriptor, own_device_only, memory + at);
    }
    return memory;
  }
  // At the address `at` unless that is nullptr.
  char* AllocateAs(int device, uint64_t bytes, Sharing sharing, bool own_device_only = false, char* at = nullptr) {
    CheckNotCapturing();
    WaitWhileHeld();
    const int fd = memfd_create("jaxring-fake-gpu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw GpuError("out of memory");
    char* memory = Mapped(at, bytes, at == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED, fd);
    std::lock_guard lock(mutex_);
    own_[memory] = {{memory, bytes, ++last_id_, device, sharing}, fd, own_device_only};
    return memory;
  }
  void Free(int, char* memory) override {
    CheckNotCapturing();
    std::lock_guard lock(mutex_);
    auto it = own_.find(memory);
    if (it == own_.end()) throw GpuError("free of what was not allocated");
    munmap(memory, it->second.allocation.bytes);
    close(it->second.fd);
    own_.erase(it);
  }
  char* AllocatePinned(uint64_t bytes) override {
    if (prepared_ == 0) throw GpuError("pinned memory before a device is prepared, for which CUDA uses device 0");
    return Allocate(-1, bytes);
  }
  void FreePinned(char* memory) override { Free(-1, memory); }

  std::string WhyNotDirect(int) override { return options().no_direct ? "the driver reports no GPUDirect RDMA" : ""; }
  char* AllocateDirect(int device, uint64_t bytes) override { return Allocate(device, bytes); }
  // What no NIC's driver takes for a dma-buf, so that the memory is registered by its address.
  int ExportDmaBuf(int, char* memory, uint64_t) override {
    std::lock_guard lock(mutex_);
    return fcntl(own_.at(memory).fd, F_DUPFD_CLOEXEC, 0);
  }
  void FlushDirect(int) override {}

  Allocation Find(const void* pointer) override {
    std::lock_guard lock(mutex_);
    auto it = own_.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
    if (it == own_.begin()) return {};
    Allocation found = std::prev(it)->second.allocation;
    if (static_cast<const char*>(pointer) >= found.base + found.bytes) return {};
    if (found.device < 0 || options().no_export) found.sharing = Sharing::kNone;
    return found;
  }
  bool Reaches(int device, const void* pointer) override {
    const Allocation found = Find(pointer);
    if (found.base == nullptr || found.device == device) return true;
    std::lock_guard lock(mutex_);
    return !own_.at(found.base).own_device_only || granted_.count({found.base, device}) != 0;
  }
  void Grant(int device, const void* pointer) override {
    CheckNotCapturing();
    const Allocation found = Find(pointer);
    if (found.base == nullptr) throw GpuError("cuMemSetAccess: invalid argument (1)");
    std::lock_guard lock(mutex_);
    granted_.insert({found.base, device});
  }
  IpcHandle Export(const Allocation& allocation) override {
    CheckNotCapturing();
    if (allocation.sharing != Sharing::kHandle || options().no_ipc)
      throw GpuError("cudaIpcGetMemHandle: invalid argument (1)");
    std::lock_guard lock(mutex_);
    IpcHandle handle{};
    const Handle contents{getpid(), own_.at(allocation.base).fd, allocation.bytes};
    std::memcpy(handle.bytes.data(), &contents, sizeof contents);
    return handle;
  }
  char* Import(int, const IpcHandle& handle) override {
    CheckNotCapturing();
    if (options().no_import) throw GpuError("cudaIpcOpenMemHandle: peer access is not supported (217)");
    Handle contents;
    std::memcpy(&contents, handle.bytes.data(), sizeof contents);
    if (Unmappable(contents.bytes)) throw GpuError("cudaIpcOpenMemHandle: out of memory (2)");
    const std::string path = "/proc/" + std::to_string(contents.pid) + "/fd/" + std::to_string(contents.fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) throw GpuError("cannot open " + path + ": " + std::strerror(errno));
    char* memory = Map(fd, contents.bytes);
    close(fd);
    return memory;
  }
  int ExportDescriptor(const Allocation& allocation) override {
    std::lock_guard lock(mutex_);
    const auto found = own_.find(allocation.base);
    if (found == own_.end() || found->second.allocation.id != allocation.id) {
      throw GpuError("cuMemRetainAllocationHandle: invalid argument (1)");
    }
    return fcntl(found->second.fd, F_DUPFD_CLOEXEC, 0);
  }
  char* ImportDescriptor(int, int descriptor, uint64_t bytes) override {
    CheckNotCapturing();
    if (options().no_import) throw GpuError("cuMemImportFromShareableHandle: not supported (801)");
    if (Unmappable(bytes)) throw GpuError("cuMemMap: out of memory (2)");
    return Map(descriptor, bytes);
  }

  bool HasMulticast(int) override { return !options().no_multicast; }
  std::unique_ptr<MulticastObject> NewMulticast(int, int devices, uint64_t bytes) override {
    CheckNotCapturing();
    return fake::NewMulticast(devices, bytes, Bindable());
  }
  std::unique_ptr<MulticastObject> ImportMulticast(int, int descriptor, uint64_t) override {
    CheckNotCapturing();
    return fake::OpenMulticast(descriptor, Bindable());
  }

  void Copy(int, void* to, const void* from, uint64_t bytes) override {
    CheckNotCapturing();
    if (options().lose_writes && Foreign(to)) return;
    if (bytes != sizeof(uint64_t)) {
      std::memcpy(to, from, bytes);
      return;
    }
    // A kernel may poll this word, so it is stored as a whole.
    uint64_t word;
    std::memcpy(&word, from, bytes);
    __atomic_store_n(static_cast<uint64_t*>(to), word, __ATOMIC_RELAXED);
  }
  void CopyAsync(void* to, const void* from, uint64_t bytes, void* stream) override {
    Machine::Get().Push(Number(stream), {[=] { std::memcpy(to, from, bytes); }, {}});
  }
  void ClearAsync(int, void* memory, uint64_t bytes, void* stream) override {
    Machine::Get().Push(Number(stream), {[=] { std::memset(memory, 0, bytes); }, {}});
  }
  bool Capturing(void* stream) override { return Machine::Get().Capturing(Number(stream)); }
  void ReadBehind(void* stream, void* to, const void* from, uint64_t bytes) override {
    if (Capturing(stream)) throw GpuError("operation not permitted when stream is capturing");
    std::unique_lock held(driver, std::defer_lock);
    const bool pinned = Find(to).base != nullptr && Find(to).device < 0;
    if (!pinned) held.lock();
    ++readers;
    Machine::Get().Synchronize(Number(stream));
    --readers;
    std::memcpy(to, from, bytes);
  }

  void Launch(int device, const Args& args, int threads, void* stream) override {
    CheckReached(device, args);
    Machine::Get().Push(Number(stream), {{}, args, -1, threads});
  }
  void LaunchEpilogue(int device, const EpilogueArgs& epilogue, const Args& args, int threads, void* stream) override {
    CheckReached(device, args);
    Machine::Get().Push(Number(stream), {{}, args, -1, threads, Task::kNoBarrier, {}, {}, {}, epilogue});
  }
  // What a launch whose members address each other's buffers needs: here all devices are members'.
  void CheckReached(int device, const Args& args) {
    CheckPrepared(device);
    for (int other = 0; other < options().devices && args.member_count != 0; ++other) {
      if (!Reaches(other, args.in) || !Reaches(other, args.out)) throw GpuError("an illegal memory access (700)");
    }
  }
  void LaunchPointToPoint(int device, const PointToPoint& message, const Args& args, int threads,
                          void* stream) override {
    CheckPrepared(device);
    Machine::Get().Push(Number(stream), {{}, args, -1, threads, Task::kNoBarrier, message});
  }
  void LaunchMulticast(int device, const Multicast& memory, const Args& args, int threads, void* stream) override {
    CheckPrepared(device);
    Machine::Get().Push(Number(stream), {{}, args, -1, threads, Task::kNoBarrier, {}, {}, memory});
  }
  void LaunchExtents(int device, const Ragged& ragged, const Args& args, void* stream) override {
    CheckPrepared(device);
    Machine::Get().Push(Number(stream), {{}, args, -1, kWarp, Task::kNoBarrier, {}, ragged});
  }
  void LaunchFused(int device, Fused fused, const Args& args, int threads, void* stream) override {
    CheckReached(device, args);
    Machine::Get().Push(Number(stream), {{}, args, static_cast<int>(fused), threads});
  }
  void LaunchBarrier(int device, bool open, const Args& args, void* stream) override {
    CheckPrepared(device);
    Machine::Get().Push(Number(stream), {{}, args, -1, kCopyBarrierThreads, open ? Task::kOpen : Task::kClose});
  }
  void LaunchEmpty(int, const Args*, int, void* stream) override {
    Machine::Get().Push(Number(stream), {[] {}, {}});
  }

  void* NewSideStream(int device) override {
    CheckNotCapturing();
    return NewStream(device);
  }
  void* NewEvent(int) override {
    CheckNotCapturing();
    return new FakeEvent;
  }
  void Record(void* event, void* stream) override {
    auto& mine = *static_cast<FakeEvent*>(event);
    mine.mark = std::make_shared<Come>();
    mine.capture = Machine::Get().Recorded(Number(stream), mine.mark);
  }
  void Follow(void* stream, void* event) override {
    const auto& mine = *static_cast<FakeEvent*>(event);
    if (mine.mark) Machine::Get().Await(Number(stream), mine.mark, mine.capture);
  }
  void CloseEvent(int, void* event) override { delete static_cast<FakeEvent*>(event); }

  void* NewStream(int) override { return Pointer(Machine::Get().NewStream()); }
  void CloseStream(int, void* stream) override { Machine::Get().CloseStream(Number(stream)); }
  void Synchronize(int, void* stream) override { Machine::Get().Synchronize(Number(stream)); }
  std::function<void()> Capture(int, void* stream, const std::function<void()>& enqueue) override {
    Machine::Get().BeginCapture(Number(stream));
    capturing = true;
    try {
      enqueue();
    } catch (...) {
      capturing = false;
      Machine::Get().EndCapture(Number(stream));
      throw;
    }
    capturing = false;
    return [graph = Machine::Get().EndCapture(Number(stream))] { Replay(graph); };
  }

  static int Number(void* stream) { return static_cast<int>(reinterpret_cast<intptr_t>(stream)) - 1; }
  static void* Pointer(int number) { return reinterpret_cast<void*>(static_cast<intptr_t>(number) + 1); }

 private:
  struct FakeEvent {
    Mark mark;
    int capture = -1;  // where it was recorded
  };
  static void Replay(const Graph& graph) {
    std::map<Mark, Mark> fresh;  // each replay's events are its own
    const auto renewed = [&](const Mark& mark) {
      if (!mark) return mark;
      Mark& now = fresh[mark];
      if (!now) now = std::make_shared<Come>();
      return now;
    };
    for (auto [stream, task] : graph) {
      task.sets = renewed(task.sets);
      task.awaits = renewed(task.awaits);
      Machine::Get().Push(stream, task);
    }
  }
  struct Mapping {
    Allocation allocation;
    int fd;
    bool own_device_only;
  };
  static bool Unmappable(uint64_t bytes) { return bytes == __atomic_load_n(&options().no_import_of, __ATOMIC_RELAXED); }
  static char* Mapped(char* at, uint64_t bytes, int flags, int fd) {
    void* memory = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory == MAP_FAILED) throw GpuError("out of memory");
    return static_cast<char*>(memory);
  }
  NewMemory Bindable() {
    return [this](int device, uint64_t bytes) {
      char* memory = AllocateShared(device, bytes);
      return std::make_pair(memory, ExportDescriptor(Find(memory)));
    };
  }
  void CheckPrepared(int device) {
    EnterDriver();
    if ((prepared_ >> device & 1) == 0) throw GpuError("a launch on a device whose kernels were not loaded before");
  }
  char* Map(int fd, uint64_t bytes) {
    if (options().map_behind_kernels) Machine::Get().AwaitNoKernel();
    // Kernels learn by way of the peer's process that it is mapped, which ThreadSanitizer does not see.
    void* memory;
    {
      simt::Unseen unseen;
      memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED) throw GpuError("cannot map a peer's memory");
    std::lock_guard lock(mutex_);
    foreign_[static_cast<char*>(memory)] = bytes;
    return static_cast<char*>(memory);
  }
  bool Foreign(void* pointer) {
    std::lock_guard lock(mutex_);
    auto it = foreign_.upper_bound(static_cast<char*>(pointer));
    if (it == foreign_.begin()) return false;
    --it;
    return static_cast<char*>(pointer) < it->first + it->second;
  }

  std::mutex mutex_;
  std::atomic<uint32_t> prepared_{0};
  std::map<char*, Mapping> own_;
  std::map<char*, uint64_t> foreign_;
  std::set<std::pair<char*, int>> granted_;
  uint64_t last_id_ = 0;
};

}  // namespace

Options& options() {
  static Options options;
  return options;
}

int Readers() { return readers; }

void HoldAllocations(bool hold) {
  hold_allocations = hold;
  hold_allocations.notify_all();
}

int HeldAllocations() { return held_allocations; }

int RunningKernels() { return Machine::Get().RunningKernels(); }

uint64_t Enqueued(void* stream) { return Machine::Get().Pushed(FakeGpu::Number(stream)); }

void* StreamOf(int device) {
  static std::mutex mutex;
  static auto* streams = new std::map<int, void*>;
  std::lock_guard lock(mutex);
  void*& stream = (*streams)[device];
  if (stream == nullptr) stream = ThisGpu().NewStream(0);
  return stream;
}

}  // namespace jaxring::cuda::fake

namespace jaxring::cuda {

Gpu& ThisGpu() {
  static auto* gpu = new fake::FakeGpu;
  return *gpu;
}

}  // namespace jaxring::cuda
