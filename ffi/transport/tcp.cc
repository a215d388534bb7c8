#include "transport/tcp.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace jaxring {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr uint32_t kGoodbye = 255;  // in place of a protocol: nothing follows

class PumpNotifier final : public Notifier {
 public:
  explicit PumpNotifier(std::weak_ptr<TcpSendPump> pump) : pump_(std::move(pump)) {}
  void Notify() override {
    if (auto pump = pump_.lock()) pump->Pump();
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
  void set_pump(std::weak_ptr<TcpRecvPump> pump) { pump_ = std::move(pump); }
  void SayGoodbye() {
    if (auto pump = pump_.lock()) pump->SayGoodbye();
  }

 private:
  Poller* poller_;
  std::weak_ptr<TcpRecvPump> pump_;
};

}  // namespace

TcpSendPump::TcpSendPump(int fd, Poller* poller, std::shared_ptr<SendLink> link, Notifier* on_room, OnEnd on_end)
    : fd_(fd),
      poller_(poller),
      link_(std::move(link)),
      ll_(link_->memory.ring(Protocol::kLL), on_room),
      simple_(link_->memory.ring(Protocol::kSimple), on_room),
      on_end_(std::move(on_end)),
      on_room_(on_room) {}

TcpSendPump::~TcpSendPump() { close(fd_); }

bool TcpSendPump::NextMessage() {
  header_.protocol = static_cast<uint32_t>(Protocol::kLL);
  bool found = ll_.FindNext(&position_, &header_.id, &payload_, &header_.message);
  if (!found) {
    header_.protocol = static_cast<uint32_t>(Protocol::kSimple);
    found = simple_.FindNext(&position_, &header_.id, &payload_, &header_.message);
  }
  written_ = 0;
  return found;
}

void TcpSendPump::Pump() {
  std::lock_guard lock(mutex_);
  if (link_->end.closed) return;
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
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = count;
      ssize_t n = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
          if (!armed_) poller_->Change(fd_, EPOLLOUT | EPOLLRDHUP);
          armed_ = true;
          return;
        }
        return End(std::string("the connection broke: ") + std::strerror(errno));
      }
      written_ += static_cast<size_t>(n);
    }
    writing_ = false;
    (header_.protocol == static_cast<uint32_t>(Protocol::kLL) ? ll_ : simple_).Release(position_);
  }
  if (armed_) poller_->Change(fd_, EPOLLRDHUP);
  armed_ = false;
}

void TcpSendPump::End(const std::string& why) {
  // The one thing that ever comes back on this connection is the receiver's goodbye.
  char byte;
  const bool goodbye = recv(fd_, &byte, 1, MSG_DONTWAIT) == 1;
  link_->end.Close(why);
  on_room_->Notify();
  if (on_end_) on_end_(why, goodbye);
}

void TcpSendPump::SayGoodbye() {
  std::lock_guard lock(mutex_);
  if (link_->end.closed || writing_) return;
  WireHeader goodbye{};
  goodbye.protocol = kGoodbye;
  [[maybe_unused]] ssize_t n = send(fd_, &goodbye, sizeof goodbye, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void TcpSendPump::OnEvents(uint32_t events) {
  if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
    End("the peer closed the connection");
    poller_->Remove(fd_);
    return;
  }
  Pump();
}

TcpRecvPump::TcpRecvPump(int fd, Poller* poller, std::shared_ptr<RecvLink> link, Notifier* on_message, OnEnd on_end)
    : fd_(fd),
      poller_(poller),
      link_(std::move(link)),
      ll_(link_->memory.ring(Protocol::kLL), on_message),
      simple_(link_->memory.ring(Protocol::kSimple), on_message),
      on_message_(on_message),
      buffer_(kReadBytes),
      on_end_(std::move(on_end)) {}

TcpRecvPump::~TcpRecvPump() { close(fd_); }

void TcpRecvPump::End(const std::string& why) {
  closed_ = true;
  link_->end.Close(why);
  on_message_->Notify();
  if (on_end_) on_end_(why, goodbye_);
  poller_->Remove(fd_);
}

// Takes what it can of `size` bytes; false when a full ring stops it (the ring's next release kicks the poller).
bool TcpRecvPump::Advance(const char* data, size_t size, size_t* used) {
  *used = 0;
  while (true) {
    if (!in_message_) {
      if (size - *used < sizeof header_) return true;
      std::memcpy(&header_, data + *used, sizeof header_);
      if (header_.protocol == kGoodbye) {
        goodbye_ = true;
        *used += sizeof header_;
        continue;
      }
      bool ll = header_.protocol == static_cast<uint32_t>(Protocol::kLL);
      RingSender& ring = ll ? ll_ : simple_;
      if ((!ll && header_.protocol != static_cast<uint32_t>(Protocol::kSimple)) ||
          header_.message.bytes > ring.memory().shape().payload_bytes) {
        End("the peer sent a message that is no jaxring message");
        return false;
      }
      if (!ring.Reserve(&position_)) {
        paused_ = true;
        return false;
      }
      *used += sizeof header_;
      in_message_ = true;
      filled_ = 0;
    }
    RingSender& ring = header_.protocol == static_cast<uint32_t>(Protocol::kLL) ? ll_ : simple_;
    size_t take = std::min(size - *used, header_.message.bytes - filled_);
    std::memcpy(ring.payload(position_) + filled_, data + *used, take);
    *used += take;
    filled_ += take;
    if (filled_ < header_.message.bytes) return true;
    ring.Publish(position_, header_.id, header_.message);
    in_message_ = false;
  }
}

void TcpRecvPump::Read() {
  paused_ = false;
  while (!closed_) {
    if (end_ > begin_) {
      size_t used;
      bool more = Advance(buffer_.data() + begin_, end_ - begin_, &used);
      begin_ += used;
      if (!more) {
        // Stop listening while paused, or level-triggered epoll would spin.
        if (!closed_) poller_->Change(fd_, 0);
        return;
      }
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    ssize_t n;
    if (in_message_ && end_ == 0 && header_.message.bytes - filled_ >= buffer_.size()) {
      // Large payloads go straight into their slot.
      n = recv(fd_, simple_.payload(position_) + filled_, header_.message.bytes - filled_, MSG_DONTWAIT);
      if (n > 0) {
        filled_ += static_cast<size_t>(n);
        if (filled_ == header_.message.bytes) {
          simple_.Publish(position_, header_.id, header_.message);
          in_message_ = false;
        }
        continue;
      }
    } else {
      n = recv(fd_, buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT);
      if (n > 0) {
        end_ += static_cast<size_t>(n);
        continue;
      }
    }
    if (n == 0) return End("the peer closed the connection");
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    return End(std::string("the connection broke: ") + std::strerror(errno));
  }
}

void TcpRecvPump::OnEvents(uint32_t) { Read(); }

void TcpRecvPump::SayGoodbye() {
  const char byte = 'b';
  [[maybe_unused]] ssize_t n = send(fd_, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void TcpRecvPump::OnKick() {
  if (!paused_ || closed_) return;
  poller_->Change(fd_, EPOLLIN);
  Read();
}

std::shared_ptr<SendLink> MakeTcpSendLink(int fd, Poller* poller, uint32_t slot_bytes, Notifier* own_bell,
                                          OnEnd on_end) {
  auto link = std::make_shared<SendLink>("tcp", LinkMemory::Anonymous(slot_bytes), nullptr);
  auto pump = std::make_shared<TcpSendPump>(fd, poller, link, own_bell, std::move(on_end));
  link->notifier = std::make_unique<PumpNotifier>(pump);
  link->ll.set_on_publish(link->notifier.get());
  link->simple.set_on_publish(link->notifier.get());
  poller->Add(fd, EPOLLRDHUP, pump);
  return link;
}

std::shared_ptr<RecvLink> MakeTcpRecvLink(int fd, Poller* poller, uint32_t slot_bytes, Notifier* own_bell,
                                          OnEnd on_end) {
  auto notifier = std::make_unique<KickNotifier>(poller);
  auto link = std::make_shared<RecvLink>("tcp", LinkMemory::Anonymous(slot_bytes), notifier.get());
  auto pump = std::make_shared<TcpRecvPump>(fd, poller, link, own_bell, std::move(on_end));
  notifier->set_pump(pump);
  link->notifier = std::move(notifier);
  poller->Add(fd, EPOLLIN, std::move(pump));
  return link;
}

void SayTcpGoodbye(SendLink& link) { static_cast<PumpNotifier*>(link.notifier.get())->SayGoodbye(); }

void SayTcpGoodbye(RecvLink& link) { static_cast<KickNotifier*>(link.notifier.get())->SayGoodbye(); }

}  // namespace jaxring
