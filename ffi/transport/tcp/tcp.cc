#include "transport/tcp/tcp.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <cerrno>
#include <string>

#include "transport/tcp/tcp_connector.h"
#include "transport/tcp/tcp_totals.h"

namespace jaxring {
namespace {

class TcpNotifier final : public Notifier {
 public:
  explicit TcpNotifier(std::weak_ptr<TcpSendPump> pump) : pump_(std::move(pump)) {}
  void Notify() override {
    if (auto pump = pump_.lock()) pump->Pump();
  }
  bool GetTotals(SendTotals* totals) const override {
    auto pump = pump_.lock();
    return pump && pump->GetTotals(totals);
  }
  void SayGoodbye() {
    if (auto pump = pump_.lock()) pump->SayGoodbye();
  }

 private:
  std::weak_ptr<TcpSendPump> pump_;
};

class KickNotifier final : public Notifier {
 public:
  explicit KickNotifier(Poller* poller) : poller_(poller) {}
  void Notify() override { poller_->Kick(); }
  bool Poll() override {
    auto pump = pump_.lock();
    return pump && pump->Poll();
  }
  void set_pump(std::weak_ptr<TcpRecvPump> pump) { pump_ = std::move(pump); }
  void SayGoodbye() {
    if (auto pump = pump_.lock()) pump->SayGoodbye();
  }

 private:
  Poller* poller_;
  std::weak_ptr<TcpRecvPump> pump_;
};

}  // namespace

TcpSendPump::TcpSendPump(std::unique_ptr<Stream> stream, Poller* poller, std::shared_ptr<SendLink> link,
                         Notifier* on_room, OnEnd on_end)
    : stream_(std::move(stream)),
      poller_(poller),
      link_(std::move(link)),
      ll_(link_->memory.ring(Protocol::kLL), on_room),
      simple_(link_->memory.ring(Protocol::kSimple), on_room),
      on_end_(std::move(on_end)),
      on_room_(on_room) {}

bool TcpSendPump::NextMessage() {
  MessageId id;
  Message message;
  header_.protocol = static_cast<uint32_t>(Protocol::kLL);
  bool found = ll_.FindNext(&position_, &id, &payload_, &message);
  if (!found) {
    header_.protocol = static_cast<uint32_t>(Protocol::kSimple);
    found = simple_.FindNext(&position_, &id, &payload_, &message);
  }
  if (!found && goodbye_ != Goodbye::kDue) return false;
  if (found) {
    header_.message = {id, message};
  } else {
    goodbye_ = Goodbye::kSaid;
    header_ = {};
    header_.protocol = WireHeader::kGoodbye;
  }
  header_.seal = header_.Seal(number_++);
  written_ = 0;
  return true;
}

void TcpSendPump::Pump() {
  MutexLock lock(mutex_);
  PumpLocked();
}

void TcpSendPump::PumpLocked() {
  if (ended_) return;
  if (!stream_->Flush()) return AwaitRoom();
  while (writing_ || NextMessage()) {
    writing_ = true;
    size_t total = sizeof header_ + header_.message.bytes;
    while (written_ < total) {
      iovec parts[2];
      int count = 0;
      if (written_ < sizeof header_) {
        parts[count++] = {reinterpret_cast<char*>(&header_) + written_, sizeof header_ - written_};
        parts[count++] = {const_cast<char*>(payload_), header_.message.bytes};
      } else {
        size_t done = written_ - sizeof header_;
        parts[count++] = {const_cast<char*>(payload_) + done, header_.message.bytes - done};
      }
      const ssize_t n = stream_->Write(parts, count);
      if (n < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return AwaitRoom();
        return Break();
      }
      written_ += static_cast<size_t>(n);
    }
    writing_ = false;
    if (header_.protocol == WireHeader::kGoodbye) continue;
    (header_.protocol == static_cast<uint32_t>(Protocol::kLL) ? ll_ : simple_).Release(position_);
  }
  if (armed_) poller_->Change(stream_->fd(), EPOLLRDHUP);
  armed_ = false;
}

void TcpSendPump::AwaitRoom() {
  if (!armed_) poller_->Change(stream_->fd(), EPOLLOUT | EPOLLRDHUP);
  armed_ = true;
}

void TcpSendPump::End(std::string why, Ending ending) {
  ended_ = true;
  ssize_t n = 1;
  while (n == 1) n = stream_->Read(&word_, 1);
  // With TLS, reading may fail with an alert: the peer received other bytes than were sent.
  if (n < 0 && EndingOf(errno) == Ending::kDamaged) {
    ending = Ending::kDamaged;
    why = "the connection broke: " + stream_->Why();
  }
  if (word_ != 0) {
    ending = word_ == TcpRecvPump::kDamagedWord ? Ending::kDamaged : Ending::kGoodbye;
    if (ending == Ending::kDamaged) why = "what was sent to it arrived damaged, so it has closed the connection";
  }
  link_->end.Close(why, ending);
  on_room_->Notify();
  if (on_end_) on_end_(why, ending);
}

void TcpSendPump::Break() {
  const Ending ending = EndingOf(errno);
  End(stream_->WhyBroken("the connection broke"), ending);
}

void TcpSendPump::SayGoodbye() {
  MutexLock lock(mutex_);
  if (goodbye_ != Goodbye::kNone) return;
  goodbye_ = Goodbye::kDue;
  PumpLocked();
}

bool TcpSendPump::CheckConnection() {
  ssize_t n = 1;
  while (n == 1) n = stream_->Read(&word_, 1);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
  n == 0 ? End("the peer closed the connection") : Break();
  poller_->Remove(stream_->fd());
  return false;
}

void TcpSendPump::OnEvents(uint32_t events) {
  MutexLock lock(mutex_);
  // A writer has found the end. epoll would report it again and again.
  if (ended_) return poller_->Remove(stream_->fd());
  // The event may be one of the connection before.
  if ((events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) && !CheckConnection()) return;
  PumpLocked();
}

void TcpSendPump::OnResumed() {
  MutexLock lock(mutex_);
  if (ended_ || !CheckConnection()) return;
  armed_ = false;
  AwaitRoom();
  PumpLocked();
}

bool TcpSendPump::GetTotals(SendTotals* totals) const {
  return !ended_.load(std::memory_order_relaxed) && GetTcpTotals(stream_->fd(), totals);
}

std::shared_ptr<SendLink> MakeTcpSendLink(std::unique_ptr<Stream> stream, Poller* poller, LinkMemory memory,
                                          Notifier* own_doorbell, OnEnd on_end) {
  const int fd = stream->fd();
  auto link = std::make_shared<SendLink>(kTcp, std::move(memory), nullptr);
  auto pump = std::make_shared<TcpSendPump>(std::move(stream), poller, link, own_doorbell, std::move(on_end));
  link->notifier = std::make_unique<TcpNotifier>(pump);
  link->ll.set_on_publish(link->notifier.get());
  link->simple.set_on_publish(link->notifier.get());
  poller->Add(fd, EPOLLRDHUP, pump);
  return link;
}

std::shared_ptr<RecvLink> MakeTcpRecvLink(std::unique_ptr<Stream> stream, Poller* poller, BusyPollers* busy_pollers,
                                          LinkMemory memory, Notifier* own_doorbell, OnEnd on_end) {
  const int fd = stream->fd();
  auto notifier = std::make_unique<KickNotifier>(poller);
  auto link = std::make_shared<RecvLink>(kTcp, std::move(memory), notifier.get());
  auto pump =
      std::make_shared<TcpRecvPump>(std::move(stream), poller, busy_pollers, link, own_doorbell, std::move(on_end));
  notifier->set_pump(pump);
  busy_pollers->Add(pump);
  link->must_poll = true;
  link->notifier = std::move(notifier);
  poller->Add(fd, EPOLLIN, std::move(pump));
  return link;
}

void SayTcpGoodbye(SendLink& link) { static_cast<TcpNotifier*>(link.notifier.get())->SayGoodbye(); }

void SayTcpGoodbye(RecvLink& link) { static_cast<KickNotifier*>(link.notifier.get())->SayGoodbye(); }

}  // namespace jaxring
