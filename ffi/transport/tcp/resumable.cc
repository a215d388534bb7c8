#include "transport/tcp/resumable.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace jaxring {
namespace {

// The peer's kernel may have the last of these bytes without its process being able to read them: an incomplete record
// of TLS.
constexpr uint64_t kSlack = 32 * 1024;
constexpr uint64_t kSmallest = 128 * 1024;
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
                                 GetState get_state)
    : Stream(Duplicate(first->fd())),
      poller_(poller),
      on_destroyed_(std::move(on_destroyed)),
      get_state_(std::move(get_state)),
      stream_(std::move(first)),
      kept_(kSmallest) {
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

void ResumableStream::Put(const char* data, size_t bytes) {
  const size_t at = written_ % kept_.size(), part = std::min(bytes, kept_.size() - at);
  std::memcpy(kept_.data() + at, data, part);
  std::memcpy(kept_.data(), data + part, bytes - part);
  written_ += bytes;
}

void ResumableStream::Confirm() {
  if (confirmed_ || suspended_at_ != Time{}) return;
  char none;
  const ssize_t n = ReadConnection(&none, 0);
  if (!confirmed_ && !(n < 0 && IsTransient(errno))) Lose();
}

size_t ResumableStream::MakeRoom(size_t bytes) {
  const uint64_t after = written_ + bytes;
  int queued = 0;
  // Of what was written to it, not acknowledged yet. A socket that cannot tell gives up nothing.
  if (after - first_ > kept_.size() && confirmed_ && suspended_at_ == Time{} &&
      ioctl(stream_->fd(), SIOCOUTQ, &queued) == 0) {
    const uint64_t needed = static_cast<uint64_t>(queued) + kSlack;
    if (sent_ > needed) first_ = std::max(first_, sent_ - needed);
  }
  if (after - first_ <= kept_.size()) return bytes;
  try {
    std::vector<char> more(std::bit_ceil(after - first_));
    for (uint64_t n = first_; n < written_;) {
      const size_t from = n % kept_.size(), to = n % more.size();
      const size_t part = std::min({static_cast<size_t>(written_ - n), kept_.size() - from, more.size() - to});
      std::memcpy(more.data() + to, kept_.data() + from, part);
      n += part;
    }
    kept_ = std::move(more);
  } catch (const std::bad_alloc&) {
    return kept_.size() - static_cast<size_t>(written_ - first_);
  }
  return bytes;
}

void ResumableStream::Keep(const iovec* parts, int count, size_t bytes) {
  for (int i = 0; i < count && bytes > 0; ++i) {
    const size_t part = std::min(bytes, parts[i].iov_len);
    Put(static_cast<const char*>(parts[i].iov_base), part);
    bytes -= part;
  }
}

bool ResumableStream::FlushLocked() {
  if (suspended_at_ != Time{}) return false;
  while (sent_ < written_) {
    const size_t at = sent_ % kept_.size();
    const size_t part = std::min(static_cast<size_t>(written_ - sent_), kept_.size() - at);
    const ssize_t n = stream_->Write(kept_.data() + at, part);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && IsTransient(errno)) return false;
    if (n < 0 && CanGoOn()) {
      Lose();
      return false;
    }
    // A connection that has ended is found by the caller's next write or read.
    if (n < 0) return true;
    sent_ += static_cast<uint64_t>(n);
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
    Keep(parts, count, 1);
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
    Keep(taken, count, static_cast<size_t>(n));
    sent_ = written_;
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
  if (stream_ || received < first_ || received > written_) {
    throw std::invalid_argument("this connection cannot go on after byte " + std::to_string(received) +
                                ": what is kept begins with byte " + std::to_string(first_) + " of " +
                                std::to_string(written_));
  }
  // The new socket has room for it. Where that has failed already, reading it says so, and the next attempt mends it.
  [[maybe_unused]] const ssize_t n = next->Write(&kResumed, 1);
  poller_->Replace(fd(), next->fd());
  stream_ = std::move(next);
  first_ = sent_ = received;
  confirmed_ = foreign_ = false;
  suspended_at_ = {};
  state_ = {};
  unanswered_since_ = {};
  trickle_ = {};
  sending_us_ = 0;
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
  return suspended_at_ == Time{} && confirmed_ && sent_ == written_ &&
         (ioctl(fd(), SIOCOUTQ, &queued) != 0 || queued == 0);
}

void ResumableStream::Observe(Time now) {
  MutexLock lock(mutex_);
  TcpState state;
  state_ = suspended_at_ == Time{} && get_state_(fd(), &state) ? std::optional(state) : std::nullopt;
  state_at_ = now;
  if (!state_ || !(state_->unacked || state_->probes)) {
    unanswered_since_ = {};
  } else if (unanswered_since_ == Time{}) {
    unanswered_since_ = now;
  }
}

bool ResumableStream::IsSilent(std::chrono::milliseconds limit) const {
  MutexLock lock(mutex_);
  // The last acknowledgement alone says nothing of a connection that had nothing to send since.
  if (suspended_at_ != Time{} || !state_ || state_->last_ack < limit) return false;
  // Where the peer has no room nothing is under way, but the kernel's questions whether there is room again.
  return ((state_->unacked && state_->retransmits) || state_->probes) && state_at_ - unanswered_since_ >= limit;
}

bool ResumableStream::IsTrickling(Time now) {
  MutexLock lock(mutex_);
  if (suspended_at_ != Time{} || !trickle_.IsDue(now) || !state_) return false;
  // Otherwise it had nothing to send, or the peer's process was what it waited for.
  const int64_t sending_us = state_->busy_us - state_->full_us;
  const bool busy = static_cast<double>(sending_us - sending_us_) > 0.9e6 * trickle_.SecondsSince(now);
  sending_us_ = sending_us;
  return trickle_.Look(now, state_->acked, busy, state_->queued);
}

}  // namespace jaxring
