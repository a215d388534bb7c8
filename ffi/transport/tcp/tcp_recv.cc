// The receiving pump: reads a socket and fills the ring from which this process's lanes read.
#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "transport/tcp/tcp.h"

namespace jaxring {
namespace {

constexpr size_t kReadBytes = 64 * 1024;

}  // namespace

TcpRecvPump::TcpRecvPump(std::unique_ptr<Stream> stream, Poller* poller, BusyPollers* busy_pollers,
                         std::shared_ptr<RecvLink> link, Notifier* on_message, OnEnd on_end)
    : stream_(std::move(stream)),
      poller_(poller),
      busy_pollers_(busy_pollers),
      link_(std::move(link)),
      reader_(link_->memory.ring(Protocol::kLL), link_->memory.ring(Protocol::kSimple), on_message),
      on_message_(on_message),
      buffer_(kReadBytes),
      on_end_(std::move(on_end)) {}

void TcpRecvPump::End(const std::string& why, Ending ending) {
  closed_ = true;
  if (reader_.goodbye()) ending = Ending::kGoodbye;
  if (ending == Ending::kDamaged) Say(kDamagedWord);
  link_->end.Close(why, ending);
  on_message_->Notify();
  if (on_end_) on_end_(why, ending);
  poller_->Remove(stream_->fd());
}

void TcpRecvPump::Break() {
  const Ending ending = EndingOf(errno);
  End(stream_->WhyBroken("the connection broke"), ending);
}

bool TcpRecvPump::Read() {
  paused_ = false;
  bool any = false, drained = false;
  while (!closed_) {
    if (end_ > begin_) {
      size_t used;
      const WireReader::Result result = reader_.Take(buffer_.data() + begin_, end_ - begin_, &used);
      begin_ += used;
      if (reader_.goodbye()) link_->end.complete.store(true, std::memory_order_release);
      if (result == WireReader::Result::kGarbage) {
        End(BrokenSeal(reader_.number()), Ending::kDamaged);
        return true;
      }
      if (result == WireReader::Result::kFull) {
        // The ring's next release kicks the poller. Until then, level-triggered epoll would spin.
        paused_ = true;
        poller_->Change(stream_->fd(), 0);
        return any;
      }
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    if (drained) return any;
    ssize_t n;
    if (end_ == 0 && reader_.missing() >= buffer_.size()) {
      // Large payloads go straight into their slot.
      n = stream_->Read(reader_.place(), reader_.missing());
      if (n > 0) {
        reader_.Filled(static_cast<size_t>(n));
        any = true;
        continue;
      }
    } else {
      const size_t room = buffer_.size() - end_;
      n = stream_->Read(buffer_.data() + end_, room);
      if (n > 0) {
        end_ += static_cast<size_t>(n);
        any = true;
        // A short read means that the socket is empty, so another call would only return EAGAIN.
        drained = static_cast<size_t>(n) < room && !stream_->holds_bytes();
        continue;
      }
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return any;
    n == 0 ? End("the peer closed the connection") : Break();
  }
  return true;
}

void TcpRecvPump::OnEvents(uint32_t) {
  MutexLock lock(mutex_);
  // The event is older than the pause that another thread's reading has begun since. Reading on would end the pause
  // with no events enabled, and the kick that enables them passes by a pump that does not pause.
  if (paused_) return;
  if (armed_ && !closed_ && busy_pollers_->any()) {
    armed_ = false;
    if (busy_pollers_->MayDisableEvents()) {
      poller_->Change(stream_->fd(), EPOLLRDHUP);
    } else {
      armed_ = true;
    }
  }
  Read();
}

void TcpRecvPump::EnableEvents() {
  MutexLock lock(mutex_);
  if (armed_) return;
  armed_ = true;
  if (!closed_ && !paused_) poller_->Change(stream_->fd(), EPOLLIN);
}

bool TcpRecvPump::Poll() {
  if (!busy_pollers_->any() || !mutex_.TryLock()) return false;
  MutexLock lock(mutex_, std::adopt_lock);
  return !closed_ && !paused_ && Read();
}

void TcpRecvPump::OnResumed() {
  MutexLock lock(mutex_);
  if (closed_) return;
  stream_->Flush();  // what was said meanwhile
  poller_->Change(stream_->fd(), paused_ ? 0u : armed_ ? EPOLLIN : EPOLLRDHUP);
  if (!paused_) Read();
}

void TcpRecvPump::Say(char word) { [[maybe_unused]] ssize_t n = stream_->Write(&word, 1); }

void TcpRecvPump::SayGoodbye() { Say(kGoodbyeWord); }

void TcpRecvPump::OnKick() {
  MutexLock lock(mutex_);
  if (!paused_ || closed_) return;
  armed_ = true;
  poller_->Change(stream_->fd(), EPOLLIN);
  Read();
}

}  // namespace jaxring
