// Memory of the fake GPU that processes of one host share.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "cuda/sim/fake/driver_fake.h"
#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/fake/mappings.h"
#include "cuda/sim/fake/parts_fake.h"

namespace jaxring::cuda::fake {
namespace {

struct Handle {
  int32_t pid, fd;
  uint64_t bytes;
};

bool Unmappable(uint64_t bytes) { return bytes == __atomic_load_n(&options().no_import_of, __ATOMIC_RELAXED); }

class SharedMemory final : public GpuSharing {
 public:
  IpcHandle Export(const Allocation& allocation) override {
    CheckNotCapturing();
    if (allocation.sharing != Sharing::kHandle || options().no_ipc)
      throw GpuError("cudaIpcGetMemHandle: invalid argument (1)");
    IpcHandle handle{};
    const Handle contents{getpid(), Mappings::Get().Descriptor(allocation, "cudaIpcGetMemHandle"), allocation.bytes};
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
    char* memory = Mappings::Get().Map(fd, contents.bytes);
    close(fd);
    return memory;
  }
  int ExportDescriptor(const Allocation& allocation) override {
    return Mappings::Get().DuplicateDescriptor(allocation, "cuMemRetainAllocationHandle");
  }
  char* ImportDescriptor(int, int descriptor, uint64_t bytes) override {
    CheckNotCapturing();
    if (options().no_import) throw GpuError("cuMemImportFromShareableHandle: not supported (801)");
    if (Unmappable(bytes)) throw GpuError("cuMemMap: out of memory (2)");
    return Mappings::Get().Map(descriptor, bytes);
  }
};

}  // namespace

GpuSharing& FakeSharing() {
  static auto* sharing = new SharedMemory;
  return *sharing;
}

}  // namespace jaxring::cuda::fake
