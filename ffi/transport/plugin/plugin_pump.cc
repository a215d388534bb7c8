#include "transport/plugin/plugin_pump.h"

#include <cstring>
#include <stdexcept>
#include <thread>

#include "transport/core/wire.h"

namespace jaxring {
namespace {

// How long a receiver waits for the messages that a peer sent before it was gone: since the last arrival, and if the
// peer has said how many there are.
constexpr auto kGrace = std::chrono::milliseconds(100);
constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

PluginPump::PluginPump(std::shared_ptr<NetPlugin> plugin, void* comm, Descriptor socket, Poller* poller,
                       std::shared_ptr<void> link, LinkEnd* end, size_t message_bytes, Notifier* own_doorbell,
                       OnEnd on_end)
    : plugin_(std::move(plugin)),
      comm_(comm),
      socket_(std::move(socket)),
      poller_(poller),
      link_(std::move(link)),
      end_(end),
      message_bytes_((message_bytes + 63) / 64 * 64),
      own_doorbell_(own_doorbell),
      on_end_(std::move(on_end)),
      memory_(kBuffers * message_bytes_),
      moved_(Clock::now()) {
  for (size_t i = 0; i < kBuffers; ++i) buffers_[i].data = memory_.data() + i * message_bytes_;
}

void PluginPump::Register() { registration_ = plugin_->Register(comm_, memory_.data(), memory_.size()); }

void PluginPump::Deregister() { plugin_->Deregister(comm_, registration_); }

PluginSendPump::~PluginSendPump() {
  Deregister();
  plugin_->CloseSend(comm_);
}

PluginRecvPump::~PluginRecvPump() {
  Deregister();
  plugin_->CloseReceive(comm_);
}

void PluginPump::End(const std::string& why) {
  if (ended()) return;
  const Ending ending = goodbye_bytes_ == word_.size() ? Ending::kGoodbye : Ending::kNoGoodbye;
  end_->Close(why, ending);
  shutdown(socket_.get(), SHUT_RDWR);  // the peer sees the end, and the poller drops this pump
  own_doorbell_->Notify();
  if (on_end_) on_end_(why, ending);
}

bool PluginPump::Turn() {
  MutexLock lock(mutex_);
  if (ended()) return false;
  bool moved = false;
  try {
    moved = Advance();
  } catch (const std::runtime_error& error) {
    End(error.what());
    return true;
  }
  if (moved) moved_ = Clock::now();
  if (gone_ && Finished()) End(goodbye_bytes_ == word_.size() ? "its process ended" : "the peer closed the connection");
  return moved;
}

void PluginPump::OnEvents(uint32_t) {
  MutexLock lock(mutex_);
  while (goodbye_bytes_ < word_.size()) {
    ssize_t n = recv(socket_.get(), word_.data() + goodbye_bytes_, word_.size() - goodbye_bytes_, MSG_DONTWAIT);
    if (n > 0) {
      goodbye_bytes_ += static_cast<size_t>(n);
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    break;
  }
  // Nothing more is read from a peer that has said goodbye or has ended.
  gone_ = true;
  poller_->Remove(socket_.get());
}

PluginSendPump::PluginSendPump(std::shared_ptr<NetPlugin> plugin, void* comm, Descriptor socket, Poller* poller,
                               const std::shared_ptr<SendLink>& link, Notifier* own_doorbell, OnEnd on_end)
    : PluginPump(std::move(plugin), comm, std::move(socket), poller, link, &link->end,
                 sizeof(WireHeader) + link->memory.ring(Protocol::kSimple).shape().payload_bytes, own_doorbell,
                 std::move(on_end)),
      ll_(link->memory.ring(Protocol::kLL), own_doorbell),
      simple_(link->memory.ring(Protocol::kSimple), own_doorbell) {
  Register();
}

bool PluginSendPump::Next(Buffer* buffer) {
  WireHeader header{};
  MessageId id;
  Message message;
  uint64_t position;
  const char* payload;
  RingReceiver* ring = &ll_;
  header.protocol = static_cast<uint32_t>(Protocol::kLL);
  if (!ll_.FindNext(&position, &id, &payload, &message)) {
    ring = &simple_;
    header.protocol = static_cast<uint32_t>(Protocol::kSimple);
    if (!simple_.FindNext(&position, &id, &payload, &message)) return false;
  }
  header.message = {id, message};
  header.seal = header.Seal(taken_++);
  std::memcpy(buffer->data, &header, sizeof header);
  std::memcpy(buffer->data + sizeof header, payload, message.bytes);
  buffer->bytes = sizeof header + message.bytes;
  ring->Release(position);
  return true;
}

bool PluginSendPump::Advance() {
  bool moved = false;
  size_t ignored;
  while (in_flight_ > 0 && plugin_->Test(buffers_[oldest_].request, &ignored)) {
    oldest_ = (oldest_ + 1) % kBuffers;
    --in_flight_;
    moved = true;
  }
  while (in_flight_ < kBuffers) {
    Buffer& buffer = buffers_[next_];
    if (!filled_ && !Next(&buffer)) break;
    filled_ = true;
    buffer.request = plugin_->Send(comm_, buffer.data, buffer.bytes, registration_);
    if (buffer.request == nullptr) break;
    filled_ = false;
    ++count_;
    ++in_flight_;
    next_ = (next_ + 1) % kBuffers;
    moved = true;
  }
  return moved;
}

void PluginSendPump::SayGoodbye() {
  const auto deadline = Clock::now() + kPatience;
  for (bool left = true; left && Clock::now() < deadline;) {
    Turn();
    {
      MutexLock lock(mutex_);
      left = !ended() && (filled_ || in_flight_ > 0);
    }
    if (left) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  MutexLock lock(mutex_);
  if (!ended()) [[maybe_unused]]
    ssize_t n = send(socket_.get(), &count_, sizeof count_, MSG_DONTWAIT | MSG_NOSIGNAL);
}

PluginRecvPump::PluginRecvPump(std::shared_ptr<NetPlugin> plugin, void* comm, Descriptor socket, Poller* poller,
                               const std::shared_ptr<RecvLink>& link, Notifier* own_doorbell, OnEnd on_end)
    : PluginPump(std::move(plugin), comm, std::move(socket), poller, link, &link->end,
                 sizeof(WireHeader) + link->memory.ring(Protocol::kSimple).shape().payload_bytes, own_doorbell,
                 std::move(on_end)),
      ll_(link->memory.ring(Protocol::kLL), own_doorbell),
      simple_(link->memory.ring(Protocol::kSimple), own_doorbell) {
  Register();
}

bool PluginRecvPump::Deliver(Buffer& buffer) {
  WireHeader header{};
  if (buffer.bytes >= sizeof header) std::memcpy(&header, buffer.data, sizeof header);
  const bool ll = header.protocol == static_cast<uint32_t>(Protocol::kLL);
  RingSender& ring = ll ? ll_ : simple_;
  if (!header.Sealed(count_)) throw std::runtime_error(BrokenSeal(count_));
  if ((!ll && header.protocol != static_cast<uint32_t>(Protocol::kSimple)) ||
      buffer.bytes != sizeof header + header.message.bytes ||
      header.message.bytes > ring.memory().shape().payload_bytes) {
    throw std::runtime_error("the peer sent something that is not a jaxring message");
  }
  uint64_t position;
  if (!ring.Reserve(&position)) return false;
  std::memcpy(ring.payload(position), buffer.data + sizeof header, header.message.bytes);
  ring.Publish(position, header.message.id(), header.message.message());
  ++count_;
  return true;
}

bool PluginRecvPump::Advance() {
  bool moved = false;
  while (true) {
    while (posted_ < kBuffers && !(arrived_ && next_ == oldest_)) {
      Buffer& buffer = buffers_[next_];
      buffer.request = plugin_->Receive(comm_, buffer.data, message_bytes_, registration_);
      if (buffer.request == nullptr) break;
      next_ = (next_ + 1) % kBuffers;
      ++posted_;
    }
    Buffer& buffer = buffers_[oldest_];
    if (!arrived_) {
      if (posted_ == 0 || !plugin_->Test(buffer.request, &buffer.bytes)) return moved;
      arrived_ = true;
    }
    if (!Deliver(buffer)) return moved;
    arrived_ = false;
    oldest_ = (oldest_ + 1) % kBuffers;
    --posted_;
    moved = true;
  }
}

bool PluginRecvPump::Finished() {
  const auto since = Clock::now() - moved_;
  if (goodbye_bytes_ < word_.size()) return since > kGrace;
  uint64_t sent;
  std::memcpy(&sent, word_.data(), sizeof sent);
  return count_ >= sent || since > kPatience;
}

void PluginRecvPump::SayGoodbye() {
  MutexLock lock(mutex_);
  [[maybe_unused]] ssize_t n = send(socket_.get(), &count_, sizeof count_, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace jaxring
