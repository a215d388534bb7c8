#include "cuda/host/memory/region_directory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace jaxring::cuda {

std::unique_ptr<RegionDirectory> RegionDirectory::Create() {
  const int fd = memfd_create("jaxring-regions", MFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  if (ftruncate(fd, sizeof(DirectoryPage)) != 0) {
    const int error = errno;
    close(fd);
    throw std::system_error(error, std::generic_category(), "ftruncate");
  }
  auto directory = Map(fd);
  directory->page().count.store(1, std::memory_order_release);
  return directory;
}

std::unique_ptr<RegionDirectory> RegionDirectory::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), path);
  return Map(fd);
}

std::unique_ptr<RegionDirectory> RegionDirectory::Map(int fd) {
  void* page = mmap(nullptr, sizeof(DirectoryPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    const int error = errno;
    close(fd);
    throw std::system_error(error, std::generic_category(), "mmap");
  }
  return std::unique_ptr<RegionDirectory>(new RegionDirectory(fd, static_cast<DirectoryPage*>(page)));
}

RegionDirectory::~RegionDirectory() {
  munmap(page_, sizeof(DirectoryPage));
  close(fd_);
}

DirectoryPage::Reader* RegionDirectory::Place(int process, bool claim) {
  const uint32_t name = static_cast<uint32_t>(process) + 1;
  for (DirectoryPage::Reader& reader : page_->readers) {
    uint32_t holder = reader.process.load(std::memory_order_acquire);
    if (holder == 0) {
      if (!claim) return nullptr;
      if (reader.process.compare_exchange_strong(holder, name)) return &reader;
    }
    if (holder == name) return &reader;
  }
  return nullptr;
}

}  // namespace jaxring::cuda
