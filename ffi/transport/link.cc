#include "transport/link.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace jaxring {
namespace {

size_t PageRound(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
size_t TotalBytes(uint32_t slot_bytes) {
  return PageRound(LLShape().bytes()) + PageRound(SimpleShape(slot_bytes).bytes());
}

std::string Bytes(size_t bytes) { return std::to_string(bytes) + " bytes"; }

// Takes `fd` where it fails.
void* Map(size_t bytes, int flags, int fd, const std::string& what) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base != MAP_FAILED) return base;
  const OutOfMemory error("mapping " + Bytes(bytes) + " of " + what);
  if (fd >= 0) close(fd);
  throw error;
}

}  // namespace

OutOfMemory::OutOfMemory(const std::string& what) : text_(what + ": " + std::strerror(errno)) {}

LinkMemory::LinkMemory(void* base, int fd, uint32_t simple_slot_bytes, bool owned)
    : base_(base), fd_(fd), owned_(owned), ll_(LLShape()), simple_(SimpleShape(simple_slot_bytes)) {}

LinkMemory::LinkMemory(LinkMemory&& other) noexcept
    : base_(other.base_), fd_(other.fd_), owned_(other.owned_), ll_(other.ll_), simple_(other.simple_) {
  other.base_ = nullptr;
  other.fd_ = -1;
}

LinkMemory LinkMemory::Anonymous(uint32_t slot_bytes) {
  return {Map(TotalBytes(slot_bytes), MAP_PRIVATE | MAP_ANONYMOUS, -1, "slots of a link"), -1, slot_bytes};
}

LinkMemory LinkMemory::Shared(uint32_t slot_bytes) {
  int fd = memfd_create("jaxring-link", MFD_CLOEXEC);
  if (fd < 0) throw OutOfMemory("memfd_create for a link");
  if (ftruncate(fd, static_cast<off_t>(TotalBytes(slot_bytes))) != 0) {
    const OutOfMemory error("getting " + Bytes(TotalBytes(slot_bytes)) + " of shared memory for a link");
    close(fd);
    throw error;
  }
  return {Map(TotalBytes(slot_bytes), MAP_SHARED, fd, "shared slots of a link"), fd, slot_bytes};
}

LinkMemory LinkMemory::Open(const std::string& path, uint32_t slot_bytes) {
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "opening the peer's link " + path);
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(TotalBytes(slot_bytes))) {
    close(fd);
    throw std::system_error(EINVAL, std::generic_category(),
                            "the peer's link has another size than ours; is JAXRING_BUFFSIZE the same on all ranks?");
  }
  return {Map(TotalBytes(slot_bytes), MAP_SHARED, fd, "slots of the peer's link"), fd, slot_bytes};
}

LinkMemory::~LinkMemory() {
  if (base_ != nullptr && owned_) munmap(base_, TotalBytes(simple_.payload_bytes));
  if (fd_ >= 0) close(fd_);
}

size_t LinkMemory::bytes() const { return TotalBytes(simple_.payload_bytes); }

RingMemory LinkMemory::ring(Protocol protocol) const {
  if (protocol == Protocol::kLL) return {base_, ll_};
  return {static_cast<char*>(base_) + PageRound(ll_.bytes()), simple_};
}

}  // namespace jaxring
