#include "transport/tcp/resumable.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

namespace jaxring {
namespace {

// What each end writes first on a connection that goes on.
constexpr char kResumed = 'r';

int Duplicate(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "duplicating a socket");
  return copy;
}

bool IsTransient(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// A descriptor that is never ready, and takes a connection's place while there is none.
int NeverReady() {
  static const int fd = [] {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "making a pipe");
    return ends[0];
  }();
  return fd;
}

}  // namespace

ResumableStream::ResumableStream(std::unique_ptr<Stream> first, Poller* poller, std::function<void()> on_destroyed,
                                 TcpWatch::GetState get_state)
    : Stream(Duplicate(first->fd())),
      poller_(poller),
      on_destroyed_(std::move(on_destroyed)),
      stream_(std::move(first)),
      watch_(std::move(get_state)) {
  NeverReady();  // so that it throws here if it has to
}

ResumableStream::~ResumableStream() {
  if (on_destroyed_) on_destroyed_();
}

bool ResumableStream::CanGoOn() const { return !confirmed_ || EndingOf(errno) == Ending::kUnreachable; }

void ResumableStream::Lose() {
  if (suspended_at_ != Time{}) return;
  suspended_at_ = std::chrono::steady_clock::now();
  poller_->Replace(fd(), NeverReady());
}

void ResumableStream::Confirm() {
  if (confirmed_ || suspended_at_ != Time{}) return;
  char none;
  const ssize_t n = ReadConnection(&none, 0);
  if (!confirmed_ && !(n < 0 && IsTransient(errno))) Lose();
}

size_t ResumableStream::MakeRoom(size_t bytes) {
  int queued = 0;
  // How much of what was written to it is not acknowledged yet. A socket that cannot tell gives up nothing.
  if (!kept_.HasRoom(bytes) && confirmed_ && suspended_at_ == Time{} && ioctl(stream_->fd(), SIOCOUTQ, &queued) == 0) {
    kept_.Release(static_cast<uint64_t>(queued));
  }
  return kept_.MakeRoom(bytes);
}

bool ResumableStream::FlushLocked() {
  if (suspended_at_ != Time{}) return false;
  while (!kept_.all_sent()) {
    const std::string_view part = kept_.unsent();
    const ssize_t n = stream_->Write(part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && IsTransient(errno)) return false;
    if (n < 0 && CanGoOn()) {
      Lose();
      return false;
    }
    // A connection that has ended is found by the caller's next write or read.
    if (n < 0) return true;
    kept_.Sent(static_cast<size_t>(n));
  }
  return true;
}

bool ResumableStream::Flush() {
  MutexLock lock(mutex_);
  return failed_ != 0 || FlushLocked();
}

ssize_t ResumableStream::Write(const iovec* parts, int count) {
  MutexLock lock(mutex_);
  if (failed_ != 0) {
    errno = failed_;
    return -1;
  }
  Confirm();
  if (FlushLocked()) {
    const ssize_t n = WriteConnection(parts, count);
    if (n >= 0 || IsTransient(errno) || !CanGoOn()) return n;
    Lose();
  }
  if (count == 1 && parts[0].iov_len == 1 && MakeRoom(1) == 1) {
    kept_.Add(parts, count, 1);
    return 1;
  }
  errno = EAGAIN;
  return -1;
}

ssize_t ResumableStream::WriteConnection(const iovec* parts, int count) {
  constexpr int kMostParts = 4;
  iovec taken[kMostParts];
  size_t wanted = 0;
  count = std::min(count, kMostParts);
  for (int i = 0; i < count; ++i) wanted += parts[i].iov_len;
  size_t room = MakeRoom(wanted);
  if (room == 0 && wanted > 0) {
    errno = EAGAIN;
    return -1;
  }
  for (int i = 0; i < count; ++i) {
    taken[i] = {parts[i].iov_base, std::min(parts[i].iov_len, room)};
    room -= taken[i].iov_len;
  }
  const ssize_t n = stream_->Write(taken, count);
  if (n > 0) {
    kept_.Add(taken, count, static_cast<size_t>(n));
    kept_.Sent(static_cast<size_t>(n));
  }
  return n;
}

ssize_t ResumableStream::ReadConnection(void* to, size_t bytes) {
  if (!confirmed_) {
    char mark;
    const ssize_t n = foreign_ ? 0 : stream_->Read(&mark, 1);
    if (n != 1) return n;
    foreign_ = mark != kResumed;
    if (foreign_) return 0;
    confirmed_ = true;
  }
  if (bytes == 0) return 0;
  const ssize_t n = stream_->Read(to, bytes);
  if (n > 0) received_ += static_cast<uint64_t>(n);
  return n;
}

ssize_t ResumableStream::Read(void* to, size_t bytes) {
  MutexLock lock(mutex_);
  if (pending_begin_ < pending_.size()) {
    const size_t part = std::min(bytes, pending_.size() - pending_begin_);
    std::memcpy(to, pending_.data() + pending_begin_, part);
    pending_begin_ += part;
    return static_cast<ssize_t>(part);
  }
  if (failed_ != 0 || suspended_at_ != Time{}) {
    errno = failed_ != 0 ? failed_ : EAGAIN;
    return -1;
  }
  const ssize_t n = ReadConnection(to, bytes);
  if (n > 0 || (n < 0 && IsTransient(errno))) return n;
  if (n < 0 ? !CanGoOn() : confirmed_) {
    over_ = true;
    return n;
  }
  Lose();
  errno = EAGAIN;
  return -1;
}

bool ResumableStream::holds_bytes() const {
  MutexLock lock(mutex_);
  return pending_begin_ < pending_.size() || (suspended_at_ == Time{} && stream_->holds_bytes());
}

std::string ResumableStream::Why() const {
  const int error = errno;
  MutexLock lock(mutex_);
  if (failed_ != 0) return why_;
  errno = error;
  return stream_ ? stream_->Why() : Stream::Why();
}

bool ResumableStream::given_up() const {
  MutexLock lock(mutex_);
  return failed_ != 0;
}

void ResumableStream::CheckAttempt(uint64_t attempt) const {
  if (attempt != attempt_) throw std::invalid_argument("another attempt to resume this connection has begun");
  if (failed_ != 0) throw std::invalid_argument("this connection has ended: " + why_);
}

void ResumableStream::Suspend(uint64_t attempt) {
  MutexLock lock(mutex_);
  if (attempt <= attempt_) throw std::invalid_argument("a later attempt to resume this connection has begun");
  attempt_ = attempt;
  CheckAttempt(attempt);
  Lose();
}

uint64_t ResumableStream::Drain(uint64_t attempt) {
  MutexLock lock(mutex_);
  CheckAttempt(attempt);
  if (!stream_) return received_;
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(pending_begin_));
  pending_begin_ = 0;
  constexpr size_t kPart = 64 * 1024;
  while (true) {
    const size_t before = pending_.size();
    pending_.resize(before + kPart);
    const ssize_t n = ReadConnection(pending_.data() + before, kPart);
    pending_.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
  }
  stream_.reset();
  return received_;
}

void ResumableStream::Resume(uint64_t attempt, std::unique_ptr<Stream> next, uint64_t received) {
  MutexLock lock(mutex_);
  CheckAttempt(attempt);
  if (stream_ || !kept_.GoOnFrom(received)) {
    throw std::invalid_argument("this connection cannot go on after byte " + std::to_string(received) +
                                ": what is kept begins with byte " + std::to_string(kept_.first()) + " of " +
                                std::to_string(kept_.written()));
  }
  // The new socket has room for it. Where that has failed already, reading it says so, and the next attempt mends it.
  [[maybe_unused]] const ssize_t n = next->Write(&kResumed, 1);
  poller_->Replace(fd(), next->fd());
  stream_ = std::move(next);
  confirmed_ = foreign_ = false;
  suspended_at_ = {};
  watch_.Begin();
  poller_->TellResumed(fd());
}

void ResumableStream::Fail(const std::string& why, Ending ending) {
  MutexLock lock(mutex_);
  if (failed_ != 0) return;
  Lose();
  failed_ = ending == Ending::kUnreachable ? ETIMEDOUT : ECONNRESET;
  over_ = true;
  why_ = why;
  stream_.reset();  // tells the other end
  poller_->TellResumed(fd());
}

ResumableStream::Time ResumableStream::suspended_at() const {
  MutexLock lock(mutex_);
  return suspended_at_;
}

bool ResumableStream::over() const {
  MutexLock lock(mutex_);
  return over_;
}

bool ResumableStream::confirmed() const {
  MutexLock lock(mutex_);
  return confirmed_;
}

bool ResumableStream::IsDelivered() {
  MutexLock lock(mutex_);
  Confirm();
  int queued = 0;
  return suspended_at_ == Time{} && confirmed_ && kept_.all_sent() &&
         (ioctl(fd(), SIOCOUTQ, &queued) != 0 || queued == 0);
}

void ResumableStream::Observe(Time now) {
  MutexLock lock(mutex_);
  suspended_at_ == Time{} ? watch_.Look(fd(), now) : watch_.LookAway(now);
}

bool ResumableStream::IsSilent(std::chrono::milliseconds limit) const {
  MutexLock lock(mutex_);
  return suspended_at_ == Time{} && watch_.IsSilent(limit);
}

bool ResumableStream::IsTrickling(Time now) {
  MutexLock lock(mutex_);
  return suspended_at_ == Time{} && watch_.IsTrickling(now);
}

}  // namespace jaxring
