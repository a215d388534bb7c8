#include "transport/tcp/tcp.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "transport/tcp/tcp_totals.h"

namespace jaxring {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
// The bytes that a receiver may send on the connection: it ends in good order, or it has received damaged data.
constexpr char kGoodbyeWord = 'b', kDamagedWord = 'd';

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
  std::lock_guard lock(mutex_);
  PumpLocked();
}

void TcpSendPump::PumpLocked() {
  if (ended_) return;
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
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
          if (!armed_) poller_->Change(stream_->fd(), EPOLLOUT | EPOLLRDHUP);
          armed_ = true;
          return;
        }
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

void TcpSendPump::End(std::string why, Ending ending) {
  ended_ = true;
  char word;
  const ssize_t n = stream_->Read(&word, 1);
  // With TLS, reading may fail with an alert: the peer received other bytes than were sent.
  if (n < 0 && EndingOf(errno) == Ending::kDamaged) {
    ending = Ending::kDamaged;
    why = "the connection broke: " + stream_->Why();
  }
  if (n == 1) {
    ending = word == kDamagedWord ? Ending::kDamaged : Ending::kGoodbye;
    if (ending == Ending::kDamaged) why = "what was sent to it arrived damaged, so it has closed the connection";
  }
  link_->end.Close(why, ending);
  on_room_->Notify();
  if (on_end_) on_end_(why, ending);
}

void TcpSendPump::Break() {
  const Ending ending = EndingOf(errno);
  End("the connection broke: " + stream_->Why(), ending);
}

void TcpSendPump::SayGoodbye() {
  std::lock_guard lock(mutex_);
  if (goodbye_ != Goodbye::kNone) return;
  goodbye_ = Goodbye::kDue;
  PumpLocked();
}

void TcpSendPump::OnEvents(uint32_t events) {
  if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
    End("the peer closed the connection");
    poller_->Remove(stream_->fd());
    return;
  }
  Pump();
}

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
  End("the connection broke: " + stream_->Why(), ending);
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
  std::lock_guard lock(mutex_);
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
  std::lock_guard lock(mutex_);
  if (armed_) return;
  armed_ = true;
  if (!closed_ && !paused_) poller_->Change(stream_->fd(), EPOLLIN);
}

bool TcpRecvPump::Poll() {
  if (!busy_pollers_->any()) return false;
  std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && !closed_ && !paused_ && Read();
}

void TcpRecvPump::Say(char word) { [[maybe_unused]] ssize_t n = stream_->Write(&word, 1); }

void TcpRecvPump::SayGoodbye() { Say(kGoodbyeWord); }

void TcpRecvPump::OnKick() {
  std::lock_guard lock(mutex_);
  if (!paused_ || closed_) return;
  armed_ = true;
  poller_->Change(stream_->fd(), EPOLLIN);
  Read();
}

bool TcpSendPump::GetTotals(SendTotals* totals) const {
  return !ended_.load(std::memory_order_relaxed) && GetTcpTotals(stream_->fd(), totals);
}

std::shared_ptr<SendLink> MakeTcpSendLink(std::unique_ptr<Stream> stream, Poller* poller, LinkMemory memory,
                                          Notifier* own_doorbell, OnEnd on_end) {
  const int fd = stream->fd();
  auto link = std::make_shared<SendLink>("tcp", std::move(memory), nullptr);
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
  auto link = std::make_shared<RecvLink>("tcp", std::move(memory), notifier.get());
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
