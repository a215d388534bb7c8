#include "transport/core/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace jaxring {
namespace {

std::string Bytes(size_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

OutOfMemory::OutOfMemory(const std::string& what) : text_(what + ": " + std::strerror(errno)) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(other.data_), bytes_(other.bytes_), fd_(other.fd_), owned_(other.owned_) {
  other.data_ = nullptr;
  other.fd_ = -1;
}

SharedMemory SharedMemory::Map(size_t bytes, int flags, int fd, const std::string& what) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data != MAP_FAILED) return {static_cast<char*>(data), bytes, fd, true};
  const OutOfMemory error("mapping " + Bytes(bytes) + " of " + what);
  if (fd >= 0) close(fd);
  throw error;
}

SharedMemory SharedMemory::Anonymous(size_t bytes, const std::string& what) {
  return Map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, what);
}

SharedMemory SharedMemory::Create(size_t bytes, const std::string& what) {
  int fd = memfd_create("jaxring", MFD_CLOEXEC);
  if (fd < 0) throw OutOfMemory("memfd_create for " + what);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const OutOfMemory error("getting " + Bytes(bytes) + " of shared memory for " + what);
    close(fd);
    throw error;
  }
  return Map(bytes, MAP_SHARED, fd, what);
}

SharedMemory SharedMemory::Open(const std::string& path, size_t bytes, const std::string& what) {
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "opening the peer's " + path + " for " + what);
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(bytes)) {
    close(fd);
    throw std::system_error(
        EINVAL, std::generic_category(),
        "the peer's memory for " + what + " has another size than ours; set JAXRING_BUFFSIZE to the same on all ranks");
  }
  return Map(bytes, MAP_SHARED, fd, what);
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr && owned_) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace jaxring
