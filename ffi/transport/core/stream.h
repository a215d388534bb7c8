// Non-blocking reads and writes of a connected socket, plain or by TLS (transport/tcp/tls.h).
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace jaxring {

// How a connection with a peer ended: without a goodbye (the peer crashed), with a goodbye, because the network
// delivers nothing any more, because received bytes are not the ones that were sent, or after the peer has reported an
// error: within operations, or between them, and then all that it had to send is on its way.
enum class Ending : uint32_t {
  kNoGoodbye = 0,
  kGoodbye = 1,
  kUnreachable = 2,
  kDamaged = 3,
  kReportedError = 4,
  kReportedErrorIdle = 5
};
// The ending of a connection that failed with this errno.
Ending EndingOf(int error);
// Why a connection ended, with how where it ended without a goodbye.
std::string EndOfSocket(const std::string& why, Ending ending);
// Part of the reason of an ended connection whose ends disagree about the bytes sent on it.
inline constexpr const char* kAltered = "what came is not what the peer sent";

// One thread may read while another writes.
class Stream {
 public:
  // Owns `fd` from now on.
  explicit Stream(int fd) : fd_(fd) {}
  virtual ~Stream();
  Stream(const Stream&) = delete;
  virtual int fd() const { return fd_; }
  // As sendmsg and recv: the number of bytes moved, 0 when the other side has closed, -1 with errno (such as EAGAIN).
  // After EAGAIN, a write must be repeated with the same bytes first.
  virtual ssize_t Write(const iovec* parts, int count);
  virtual ssize_t Read(void* to, size_t bytes);
  // Writes what an earlier connection has not delivered (transport/tcp/resumable.h). False if the socket has no room
  // for all of it.
  virtual bool Flush() { return true; }
  // Whether received bytes may be buffered in here, for which epoll reports no event. The caller must then read until
  // there are none.
  virtual bool holds_bytes() const { return false; }
  // The text of errno, or a more exact reason if there is one.
  virtual std::string Why() const;
  // Whether this process has given the connection up. Why then says all there is to say.
  virtual bool given_up() const { return false; }
  // `what` with the reason, or the reason alone where the connection was given up.
  std::string WhyBroken(const std::string& what) const { return given_up() ? Why() : what + ": " + Why(); }
  ssize_t Write(const void* data, size_t bytes);

 private:
  int fd_;
};

}  // namespace jaxring
