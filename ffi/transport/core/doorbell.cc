#include "transport/core/doorbell.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <system_error>

namespace jaxring {
namespace {
constexpr size_t kPageBytes = 4096;

[[noreturn]] void Throw(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }
}  // namespace

std::unique_ptr<Doorbell> Doorbell::Map(int fd) {
  void* memory = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    int error = errno;
    close(fd);
    errno = error;
    Throw("mapping a doorbell");
  }
  return std::unique_ptr<Doorbell>(new Doorbell(fd, static_cast<Page*>(memory)));
}

std::unique_ptr<Doorbell> Doorbell::Create() {
  int fd = memfd_create("jaxring-doorbell", MFD_CLOEXEC);
  if (fd < 0) Throw("memfd_create for a doorbell");
  if (ftruncate(fd, kPageBytes) != 0) Throw("sizing a doorbell");
  return Map(fd);
}

std::unique_ptr<Doorbell> Doorbell::Open(const std::string& path) {
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) Throw("opening the peer's doorbell " + path);
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(kPageBytes)) {
    close(fd);
    errno = EINVAL;
    Throw("the peer's doorbell " + path + " has the wrong size");
  }
  return Map(fd);
}

Doorbell::~Doorbell() {
  if (fd_ < 0) return;
  munmap(page_, kPageBytes);
  close(fd_);
}

bool Doorbell::Wake(int count) {
  // Sequentially consistent with Wait: either this sees the sleeper's count, or the sleeper sees the new value and does
  // not sleep.
  page_->value.fetch_add(1, std::memory_order_seq_cst);
  if (page_->sleepers.load(std::memory_order_seq_cst) == 0) return false;
  wakes_.fetch_add(1, std::memory_order_relaxed);
  WakeSleepers(count);
  return true;
}

void Doorbell::WakeSleepers(int count) { syscall(SYS_futex, &page_->value, FUTEX_WAKE, count, nullptr, nullptr, 0); }

void Doorbell::Notify() { Wake(1); }
void Doorbell::NotifyAll() { Wake(INT_MAX); }

bool Doorbell::Wait(uint32_t seen, int64_t timeout_us) {
  timespec timeout{static_cast<time_t>(timeout_us / 1000000), static_cast<long>(timeout_us % 1000000 * 1000)};
  page_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  const bool woken = syscall(SYS_futex, &page_->value, FUTEX_WAIT, seen, &timeout, nullptr, 0) == 0;
  page_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return woken;
}

}  // namespace jaxring
