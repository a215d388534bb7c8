// Multicast objects of the fake GPU: a page in shared memory stores which devices were added and which memory was
// bound. Where a driver would wait, these raise an error.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "cuda/experimental/multimem_host.h"
#include "cuda/sim/fake/driver_fake.h"
#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/fake/mappings.h"
#include "cuda/sim/fake/parts_fake.h"

namespace jaxring::cuda::fake {
namespace {

constexpr int kDevices = 32;
constexpr uint64_t kGranularity = 4096;

struct Page {
  uint64_t bytes;
  uint32_t devices;
  std::atomic<uint32_t> added;  // a bit for each device
  struct Replica {
    std::atomic<int32_t> pid, fd;  // the bound memory is /proc/<pid>/fd/<fd>; pid 0: none
  } replicas[kDevices];
};

char* MapShared(int fd, uint64_t bytes) {
  // Kernels learn by way of the peer's process that it is mapped, which ThreadSanitizer does not see.
  simt::Unseen unseen;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw GpuError("cannot map a multicast object's memory");
  return static_cast<char*>(memory);
}

class FakeMulticastObject final : public MulticastObject {
 public:
  explicit FakeMulticastObject(int fd) : fd_(fd), page_(reinterpret_cast<Page*>(MapShared(fd, sizeof(Page)))) {}
  ~FakeMulticastObject() override {
    for (auto& [device, all] : all_) simt::FreeMulticast(all);
    for (char* memory : mapped_) munmap(memory, bytes());
    for (auto& [device, own] : own_) {
      page_->replicas[device].pid = 0;
      close(own.second);
      FakeMemory().Free(device, own.first);
    }
    munmap(page_, sizeof(Page));
    close(fd_);
  }

  uint64_t bytes() const override { return page_->bytes; }
  int Export() override { return fcntl(fd_, F_DUPFD_CLOEXEC, 0); }
  void Add(int device) override {
    const uint32_t bit = 1u << device;
    if ((page_->added.fetch_or(bit) & bit) != 0 || Added() > page_->devices) {
      throw GpuError("cuMulticastAddDevice: invalid argument (1)");
    }
  }
  char* Bind(int device) override {
    if (options().no_bind) throw GpuError("cuMulticastBindMem: system not yet initialized (802)");
    if (Added() != page_->devices) throw GpuError("cuMulticastBindMem: not all devices were added");
    if ((page_->added.load() >> device & 1) == 0) throw GpuError("cuMulticastBindMem: the device was not added");
    char* memory = FakeMemory().AllocateShared(device, bytes());
    own_[device] = {memory, Mappings::Get().DuplicateDescriptor(Mappings::Get().Find(memory), "cuMulticastBindMem")};
    page_->replicas[device].fd = own_[device].second;
    page_->replicas[device].pid = getpid();
    return own_[device].first;
  }
  char* Map(int device) override {
    std::vector<char*> replicas;
    for (int other = 0; other < kDevices; ++other) {
      if (options().lose_multicast && other != device) continue;
      if ((page_->added.load() >> other & 1) != 0) replicas.push_back(Replica(other));
    }
    return all_[device] = simt::NewMulticast(std::move(replicas), bytes());
  }

 private:
  uint32_t Added() const { return static_cast<uint32_t>(__builtin_popcount(page_->added.load())); }
  char* Replica(int device) {
    if (const auto own = own_.find(device); own != own_.end()) return own->second.first;
    const Page::Replica& replica = page_->replicas[device];
    const int pid = replica.pid;
    if (pid == 0) throw GpuError("a multicast object is mapped before all have bound memory to it");
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(replica.fd.load());
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) throw GpuError("cannot open " + path);
    mapped_.push_back(MapShared(fd, bytes()));
    close(fd);
    return mapped_.back();
  }

  int fd_;
  Page* page_;
  std::map<int, std::pair<char*, int>> own_;  // by device: memory, and its file
  std::map<int, char*> all_;
  std::vector<char*> mapped_;
};

class MulticastObjects final : public GpuMulticast {
 public:
  bool Supported(int) override { return !options().no_multicast; }
  std::unique_ptr<MulticastObject> New(int, int devices, uint64_t bytes) override {
    CheckNotCapturing();
    const int fd = memfd_create("jaxring-fake-multicast", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(Page)) != 0) throw GpuError("cuMulticastCreate: out of memory (2)");
    auto* page = reinterpret_cast<Page*>(MapShared(fd, sizeof(Page)));
    page->bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    page->devices = static_cast<uint32_t>(devices);
    munmap(page, sizeof(Page));
    return std::make_unique<FakeMulticastObject>(fd);
  }
  std::unique_ptr<MulticastObject> Import(int, int descriptor, uint64_t) override {
    CheckNotCapturing();
    return std::make_unique<FakeMulticastObject>(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  }
};

}  // namespace

GpuMulticast& FakeMulticast() {
  static auto* multicast = new MulticastObjects;
  return *multicast;
}

}  // namespace jaxring::cuda::fake
