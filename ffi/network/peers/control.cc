#include "network/peers/control.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace jaxring {
namespace {

constexpr size_t kMaxUnsent = 256 * 1024;

// Makes the kernel report a cut connection. Has no effect on a Unix-domain socket, which cannot be cut.
void DetectCut(int fd, double timeout_s) {
  // Keepalive probes for idle connections: three, after half of the time. The kernel counts whole seconds, 32767 at
  // most.
  const int idle = static_cast<int>(std::clamp(timeout_s / 2, 1.0, 30000.0));
  const int interval = std::max(1, idle / 3), yes = 1, count = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  const auto limit = static_cast<unsigned>(timeout_s * 1000);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

}  // namespace

ControlLink::ControlLink(std::unique_ptr<Stream> stream, double timeout_s, Poller* poller, OnFrame on_frame,
                         OnEnd on_end)
    : stream_(std::move(stream)),
      timeout_s_(timeout_s),
      poller_(poller),
      on_frame_(std::move(on_frame)),
      on_end_(std::move(on_end)) {
  DetectCut(stream_->fd(), timeout_s);
}

bool ControlLink::Send(const std::string& frame, bool dispensable) {
  MutexLock lock(mutex_);
  if (ended_) return false;
  if ((dispensable && !unsent_.empty()) || unsent_.size() + frame.size() > kMaxUnsent) return true;
  const bool waits = !unsent_.empty();
  unsent_ += frame;
  if (waits) return true;
  if (!Flush()) poller_->Change(fd(), EPOLLIN | EPOLLRDHUP | EPOLLOUT);
  return true;
}

bool ControlLink::Flush() {
  while (!unsent_.empty()) {
    const ssize_t n = stream_->Write(unsent_.data(), unsent_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      // The poller's thread, which reads the connection, will find that it is broken.
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      if (failed_ == 0) failed_ = errno;  // the first one is the cause: later writes fail since the socket is closed
      unsent_.clear();
      return true;
    }
    unsent_.erase(0, static_cast<size_t>(n));
  }
  return stream_->Flush();
}

void ControlLink::End(const std::string& why, Ending ending) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
  }
  poller_->Remove(fd());
  shutdown(fd(), SHUT_RDWR);  // not closed, since the engine never drops this object; tells the other side
  on_end_(why, ending);
}

void ControlLink::Read() {
  char bytes[4096];
  while (true) {
    ssize_t n = stream_->Read(bytes, sizeof bytes);
    if (n == 0) {
      MutexLock lock(mutex_);
      if (EndingOf(failed_) == Ending::kUnreachable) {
        errno = failed_;
        n = -1;
      }
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n < 0 && EndingOf(errno) == Ending::kUnreachable && !stream_->given_up()) {
      char limit[32];
      std::snprintf(limit, sizeof limit, "%g", timeout_s_);
      return End(std::string("its host has acknowledged nothing for ") + limit + " s (" + stream_->Why() + ")",
                 Ending::kUnreachable);
    }
    if (n < 0) {
      const Ending ending = EndingOf(errno);
      return End(stream_->WhyBroken("the connection to its process broke"), ending);
    }
    if (n == 0) return End("its process ended");
    reader_.Feed(bytes, static_cast<size_t>(n));
    ControlFrame frame;
    FrameReader::Result result;
    while ((result = reader_.Next(&frame)) == FrameReader::Result::kFrame) on_frame_(frame);
    if (result == FrameReader::Result::kGarbage) {
      ControlFrame leaving;
      leaving.kind = ControlFrame::Kind::kLeaving;
      leaving.ending = Ending::kDamaged;
      leaving.text = "a frame on its control connection arrived damaged, so it has closed the connection";
      Send(EncodeFrame(leaving), false);
      return End("a frame from its process on the control connection arrived damaged", Ending::kDamaged);
    }
  }
}

void ControlLink::OnEvents(uint32_t events) {
  if (events & EPOLLOUT) {
    MutexLock lock(mutex_);
    if (Flush() && !ended_) poller_->Change(fd(), EPOLLIN | EPOLLRDHUP);
  }
  if (events & ~static_cast<uint32_t>(EPOLLOUT)) Read();
}

void ControlLink::OnResumed() {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    DetectCut(fd(), timeout_s_);
    poller_->Change(fd(), EPOLLIN | EPOLLRDHUP | (Flush() ? 0u : EPOLLOUT));
  }
  Read();
}

}  // namespace jaxring
