#include "transport/core/stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace jaxring {

std::string EndOfSocket(const std::string& why, Ending ending) {
  return ending == Ending::kNoGoodbye ? why + " without a word" : why;
}

Ending EndingOf(int error) {
  switch (error) {
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
      return Ending::kUnreachable;
    case EPROTO:  // TLS
      return Ending::kDamaged;
    default:
      return Ending::kNoGoodbye;
  }
}

Stream::~Stream() {
  if (fd_ >= 0) close(fd_);
}

ssize_t Stream::Write(const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t Stream::Read(void* to, size_t bytes) { return recv(fd_, to, bytes, MSG_DONTWAIT); }

std::string Stream::Why() const { return std::strerror(errno); }

ssize_t Stream::Write(const void* data, size_t bytes) {
  const iovec part{const_cast<void*>(data), bytes};
  return Write(&part, 1);
}

}  // namespace jaxring
