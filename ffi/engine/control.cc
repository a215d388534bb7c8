#include "engine/control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

namespace jaxring {
namespace {

constexpr size_t kMaxUnsent = 256 * 1024;
// A cut cable sends no word: what the peer's kernel has not acknowledged for so long has no way to it. A process that
// is stopped is not cut off, since its kernel goes on acknowledging.
constexpr unsigned kUserTimeoutMs = 10000;

}  // namespace

ControlLink::ControlLink(std::unique_ptr<Stream> stream, Poller* poller, OnFrame on_frame, OnEnd on_end)
    : stream_(std::move(stream)), poller_(poller), on_frame_(std::move(on_frame)), on_end_(std::move(on_end)) {
  const int fd = stream_->fd();
  // Fails on what is not TCP, where no cable can be cut.
  const int yes = 1, idle = 5, interval = 2, count = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
}

void ControlLink::Send(const std::string& frame, bool dispensable) {
  std::lock_guard lock(mutex_);
  if (ended_ || (dispensable && !unsent_.empty()) || unsent_.size() + frame.size() > kMaxUnsent) return;
  const bool waits = !unsent_.empty();
  unsent_ += frame;
  if (waits) return;
  Flush();
  if (!unsent_.empty()) poller_->Change(fd(), EPOLLIN | EPOLLRDHUP | EPOLLOUT);
}

void ControlLink::Flush() {
  while (!unsent_.empty()) {
    const ssize_t n = stream_->Write(unsent_.data(), unsent_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      // A connection that broke is seen by the poller's thread, which reads it.
      if (errno != EAGAIN && errno != EWOULDBLOCK) unsent_.clear();
      return;
    }
    unsent_.erase(0, static_cast<size_t>(n));
  }
}

void ControlLink::End(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
  }
  poller_->Remove(fd());
  shutdown(fd(), SHUT_RDWR);  // the engine keeps this for good; the other side is to know
  on_end_(why);
}

void ControlLink::Read() {
  char bytes[4096];
  while (true) {
    const ssize_t n = stream_->Read(bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0) return End("the connection to its process broke: " + stream_->Why());
    if (n == 0) return End("its process ended");
    reader_.Feed(bytes, static_cast<size_t>(n));
    ControlFrame frame;
    FrameReader::Result result;
    while ((result = reader_.Next(&frame)) == FrameReader::Result::kFrame) on_frame_(frame);
    if (result == FrameReader::Result::kGarbage) return End("its process sent what is no jaxring message");
  }
}

void ControlLink::OnEvents(uint32_t events) {
  if (events & EPOLLOUT) {
    std::lock_guard lock(mutex_);
    Flush();
    if (unsent_.empty() && !ended_) poller_->Change(fd(), EPOLLIN | EPOLLRDHUP);
  }
  if (events & ~static_cast<uint32_t>(EPOLLOUT)) Read();
}

}  // namespace jaxring
