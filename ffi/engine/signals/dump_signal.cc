#include "engine/signals/dump_signal.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace jaxring {
namespace {

constexpr int kMostDumps = 1000;

// Written once, before the handler is installed. The handler calls only async-signal-safe functions.
struct Dump {
  const char* record = nullptr;
  size_t bytes = 0;
  char prefix[3072] = {};
} dump;

bool WriteAll(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

// Writes PREFIX<number>.trace without snprintf, which may allocate memory.
void Name(int number, char* out) {
  size_t at = std::strlen(dump.prefix);
  std::memcpy(out, dump.prefix, at);
  char digits[16];
  int count = 0;
  do {
    digits[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  while (count > 0) out[at++] = digits[--count];
  std::memcpy(out + at, ".trace", 7);
}

void Print(const char* text) { WriteAll(STDERR_FILENO, text, std::strlen(text)); }

}  // namespace

void DumpNow(bool say) {
  if (dump.prefix[0] == '\0') return;
  const int saved = errno;
  char path[sizeof dump.prefix + 32];
  int fd = -1;
  for (int number = 0; number < kMostDumps && fd < 0; ++number) {
    Name(number, path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EEXIST) break;
  }
  const bool written = fd >= 0 && WriteAll(fd, dump.record, dump.bytes);
  if (fd >= 0) close(fd);
  if (!say) {
    errno = saved;
    return;
  }
  Print(written ? "jaxring: flight record written to " : "jaxring: cannot write the flight record ");
  Print(path);
  Print("\n");
  errno = saved;
}

void DumpOnSignal(const void* record, size_t bytes, const std::string& prefix) {
  if (dump.record != nullptr || prefix.size() >= sizeof dump.prefix) return;
  dump.record = static_cast<const char*>(record);
  dump.bytes = bytes;
  std::memcpy(dump.prefix, prefix.c_str(), prefix.size() + 1);
  struct sigaction now;
  if (sigaction(SIGUSR1, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction action{};
  action.sa_handler = [](int) { DumpNow(true); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

}  // namespace jaxring
