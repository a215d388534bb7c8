// A connected socket's bytes, without waiting for any: as they are, or by TLS (transport/tcp/tls.h).
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace jaxring {

// How a connection with a peer ends: without its word, with it, because nothing gets through any more, because what
// comes through is not what was sent, or after it has said what went wrong.
enum class Ending : uint32_t { kNoGoodbye = 0, kGoodbye = 1, kUnreachable = 2, kDamaged = 3, kReportedError = 4 };
// Of a connection that failed with this errno.
Ending EndingOf(int error);
// In the reason why a connection ended: its two ends differ in what was said on it.
inline constexpr const char* kAltered = "what came is not what the peer sent";

// Reading and writing may be done by different threads.
class Stream {
 public:
  // Takes `fd`.
  explicit Stream(int fd) : fd_(fd) {}
  virtual ~Stream();
  Stream(const Stream&) = delete;
  virtual int fd() const { return fd_; }
  // As sendmsg and recv: how many bytes went, 0 at the other side's end, -1 with errno (EAGAIN among others). Who is
  // told to try again does so with the same bytes in front.
  virtual ssize_t Write(const iovec* parts, int count);
  virtual ssize_t Read(void* to, size_t bytes);
  // Whether bytes that have come may wait in here, where no event tells of them; then it is read until there are none.
  virtual bool holds_bytes() const { return false; }
  // What errno says, or what is known beyond it.
  virtual std::string Why() const;
  ssize_t Write(const void* data, size_t bytes);

 private:
  int fd_;
};

}  // namespace jaxring
