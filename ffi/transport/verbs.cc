#include "transport/verbs.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace jaxring {
namespace {

// A notice: a message at a position or a credit up to a position, of one of the two rings; and the position's low bits.
constexpr uint32_t kCredit = uint32_t{1} << 31;
constexpr int kProtocolShift = 30;
constexpr uint32_t kPositionMask = (uint32_t{1} << kProtocolShift) - 1;
// Every so many LL messages of a connection one asks for its completion. Slots that wait for one must never be all.
constexpr int kSignalEvery = 8;
constexpr auto kDrain = std::chrono::seconds(5);
constexpr size_t kMaxHeard = 4096;
constexpr int kLastWordMs = 500;
constexpr auto kCheckPort = std::chrono::milliseconds(250);

// The whole position whose low bits are given and which is not below `from`.
uint64_t Expand(uint32_t notice, uint64_t from) {
  return from + ((notice - static_cast<uint32_t>(from)) & kPositionMask);
}

class PeerEar final : public Poller::Handler {
 public:
  explicit PeerEar(std::shared_ptr<VerbsPump> pump) : pump_(std::move(pump)) {}
  void OnEvents(uint32_t) override { pump_->Hear(); }

 private:
  std::shared_ptr<VerbsPump> pump_;
};

}  // namespace

VerbsPump::VerbsPump(std::shared_ptr<void> link, std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller,
                     LinkEnd* end, Notifier* own_bell, Lookers* lookers, OnEnd on_end)
    : link_(std::move(link)),
      endpoint_(std::move(endpoint)),
      own_bell_(own_bell),
      fd_(fd),
      poller_(poller),
      end_(end),
      on_end_(std::move(on_end)),
      lookers_(lookers) {}

VerbsPump::~VerbsPump() { close(fd_); }

void VerbsPump::Start() {
  poller_->Add(endpoint_->fd(), EPOLLIN, shared_from_this());
  poller_->Add(fd_, EPOLLIN | EPOLLRDHUP, std::make_shared<PeerEar>(shared_from_this()));
  OnEvents(0);
}

void VerbsPump::OnEvents(uint32_t) {
  std::lock_guard lock(mutex_);
  if (closed()) return;
  armed_ = false;
  endpoint_->TakeEvents();
  if (!lookers_->MayRest()) return ArmLocked();
  PumpLocked();
}

void VerbsPump::Arm() {
  std::lock_guard lock(mutex_);
  if (!armed_ && !closed()) ArmLocked();
}

void VerbsPump::ArmLocked() {
  armed_ = true;
  // Armed first and looked at afterwards, so that nothing falls in between.
  if (!endpoint_->Arm()) return End(endpoint_->error(), true);
  PumpLocked();
}

bool VerbsPump::Look() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || closed()) return false;
  return PumpLocked();
}

void VerbsPump::Pump() {
  std::lock_guard lock(mutex_);
  PumpLocked();
}

bool VerbsPump::PumpLocked() {
  bool good = !closed(), any = false;
  while (good) {
    events_.clear();
    good = endpoint_->Poll(&events_);
    // What came before a failure came whole.
    for (const Event& event : events_) good = Handle(event) && good;
    good = good && Advance();
    if (events_.empty()) break;
    any = true;
  }
  if (good || closed()) return any;
  // A peer that ends takes its queue pairs along, which an iWARP device reports at once: what it said, or that it is
  // gone, is then on its way.
  pollfd word{fd_, POLLIN, 0};
  const bool leaving = endpoint_->closed_by_peer();
  if (leaving && heard_.empty()) poll(&word, 1, kLastWordMs);
  if (Listen() || (leaving && !heard_.empty())) {
    End(LastWord(), false);
  } else {
    End(endpoint_->error(), true);
  }
  return any;
}

bool VerbsPump::Misbehaved() {
  endpoint_->Fail("the peer sent a notice that no jaxring process of this version sends");
  return false;
}

void VerbsPump::End(const std::string& why, bool tell) {
  if (closed()) return;
  end_->Close(why);
  if (tell) {
    const std::string word = "e" + why;
    [[maybe_unused]] ssize_t n = send(fd_, word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd_, SHUT_WR);
  }
  own_bell_->Notify();
  if (on_end_) on_end_(why, goodbye_ ? Ending::kGoodbye : Ending::kNoWord);
  poller_->Remove(endpoint_->fd());
  poller_->Remove(fd_);
}

void VerbsPump::Hear() {
  std::lock_guard lock(mutex_);
  if (closed() || !Listen()) return;
  // What the peer wrote before it went counts.
  PumpLocked();
  End(LastWord(), false);
}

bool VerbsPump::Listen() {
  std::array<char, 512> buffer;
  while (true) {
    const ssize_t n = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      heard_.append(buffer.data(), std::min(static_cast<size_t>(n), kMaxHeard - heard_.size()));
      if (heard_ == "b") goodbye_ = true;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
}

std::string VerbsPump::LastWord() const {
  return heard_.size() > 1 && heard_[0] == 'e' ? "it gave up: " + heard_.substr(1) : "its process ended";
}

void VerbsPump::CheckPort() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  const auto now = std::chrono::steady_clock::now();
  if (!lock || closed() || !Waiting() || now - checked_ < kCheckPort) return;
  const bool seen = checked_ != decltype(checked_){} && now - checked_ < 3 * kCheckPort;
  checked_ = now;
  if (endpoint_->PortActive() || !seen) {
    down_since_ = now;
    return;
  }
  if (now - down_since_ < endpoint_->Patience()) return;
  endpoint_->FailForPort();
  End(endpoint_->error(), true);
}

void VerbsPump::SayGoodbye() {
  const char byte = 'b';
  [[maybe_unused]] ssize_t n = send(fd_, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

VerbsSendPump::VerbsSendPump(std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller,
                             const std::shared_ptr<SendLink>& link, Notifier* own_bell, Lookers* lookers, OnEnd on_end)
    : VerbsPump(link, std::move(endpoint), fd, poller, &link->end, own_bell, lookers, std::move(on_end)),
      rings_{Ring(link->memory.ring(Protocol::kLL), own_bell), Ring(link->memory.ring(Protocol::kSimple), own_bell)},
      queues_(endpoint_->queue_pairs()),
      signal_every_(std::max(1, kSignalEvery / endpoint_->queue_pairs())) {}

bool VerbsSendPump::Handle(const Event& event) {
  if (event.notice) {
    const uint32_t notice = static_cast<uint32_t>(event.value);
    Ring& ring = rings_[notice >> kProtocolShift & 1];
    const uint64_t head = Expand(notice, ring.peer_head);
    if (!(notice & kCredit) || head > ring.next) return Misbehaved();
    ring.peer_head = head;
    return true;
  }
  // Writes of a queue pair complete in their order, so those before it are complete too.
  auto& sent = queues_[event.queue_pair].sent;
  while (!sent.empty() && sent.front().id <= event.value) {
    if (sent.front().ring != nullptr) sent.front().ring->reader.Release(sent.front().position);
    sent.pop_front();
  }
  return true;
}

bool VerbsSendPump::Advance() {
  for (uint32_t protocol : {0, 1}) {
    Ring& ring = rings_[protocol];
    while (true) {
      if (!ring.held) {
        MessageId id;
        const char* payload;
        uint64_t position;
        ring.held = ring.reader.FindNext(&position, &id, &payload, &ring.message);
      }
      if (!ring.held || ring.next - ring.peer_head >= ring.memory.shape().slots) break;
      if (!Write(ring, protocol)) return false;
    }
  }
  return true;
}

bool VerbsSendPump::Waiting() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const Queue& queue) { return !queue.sent.empty(); });
}

bool VerbsSendPump::Write(Ring& ring, uint32_t protocol) {
  // Messages are claimed in the order of their positions, so this one stands at `next`.
  const uint64_t position = ring.next++;
  ring.held = false;
  const int index = static_cast<int>(next_queue_++ % queues_.size());
  Queue& queue = queues_[index];
  const bool signaled = protocol != 0 || ++queue.unsignaled >= signal_every_;
  if (signaled) queue.unsignaled = 0;
  const uint64_t id = queue.next_id++;
  queue.sent.push_back({id, &ring, position});
  // The slot from behind the flag to the payload's end.
  const char* begin = reinterpret_cast<const char*>(&ring.memory.header(position)) + sizeof(SlotHeader::flag);
  const char* end = ring.memory.payload(position) + ring.message.bytes;
  const uint32_t notice = protocol << kProtocolShift | (static_cast<uint32_t>(position) & kPositionMask);
  return endpoint_->Write(index, begin, static_cast<uint32_t>(end - begin), notice, id, signaled);
}

void VerbsSendPump::SayGoodbye() {
  // A process that ends takes its queue pairs with it, and what the peer's device has not acknowledged.
  const auto until = std::chrono::steady_clock::now() + kDrain;
  while (true) {
    {
      std::lock_guard lock(mutex_);
      PumpLocked();
      if (closed()) return;
      bool idle = !rings_[0].held && !rings_[1].held;
      for (size_t i = 0; i < queues_.size(); ++i) {
        Queue& queue = queues_[i];
        idle = idle && queue.sent.empty();
        if (queue.unsignaled == 0 || queue.sent.empty()) continue;
        queue.unsignaled = 0;
        queue.sent.push_back({queue.next_id, nullptr, 0});
        if (!endpoint_->Mark(static_cast<int>(i), queue.next_id++)) return End(endpoint_->error(), true);
      }
      if (idle) break;
    }
    if (std::chrono::steady_clock::now() > until) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  VerbsPump::SayGoodbye();
}

VerbsRecvPump::VerbsRecvPump(std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller,
                             const std::shared_ptr<RecvLink>& link, Notifier* own_bell, Lookers* lookers, OnEnd on_end)
    : VerbsPump(link, std::move(endpoint), fd, poller, &link->end, own_bell, lookers, std::move(on_end)),
      rings_{Ring{link->memory.ring(Protocol::kLL)}, Ring{link->memory.ring(Protocol::kSimple)}} {}

bool VerbsRecvPump::Handle(const Event& event) {
  if (!event.notice) {
    --credits_under_way_;
    return true;
  }
  const uint32_t notice = static_cast<uint32_t>(event.value);
  Ring& ring = rings_[notice >> kProtocolShift & 1];
  const uint32_t slots = ring.memory.shape().slots;
  const uint64_t position = Expand(notice, ring.credited);
  SlotHeader& header = ring.memory.header(position);
  if ((notice & kCredit) || position - ring.credited >= slots ||
      header.flag.load(std::memory_order_relaxed) == position + 1 ||
      header.header.bytes > ring.memory.shape().payload_bytes) {
    return Misbehaved();
  }
  ++ring.received;
  header.flag.store(position + 1, std::memory_order_release);
  own_bell_->Notify();
  return true;
}

bool VerbsRecvPump::Advance() {
  for (uint32_t protocol : {0, 1}) {
    Ring& ring = rings_[protocol];
    RingControl& control = ring.memory.control();
    const uint32_t slots = ring.memory.shape().slots;
    // Whoever moves the head after this sees the wish and calls the pump.
    control.sender_waits.store(1, std::memory_order_seq_cst);
    const uint64_t head = control.head.load(std::memory_order_seq_cst);
    const bool all_used = ring.received == ring.credited + slots;
    if (head == ring.credited || (head - ring.credited < slots / 2 && !all_used)) continue;
    if (credits_under_way_ >= static_cast<int>(verbs::kNotices)) continue;  // the next completion looks again
    const uint32_t notice = kCredit | protocol << kProtocolShift | (static_cast<uint32_t>(head) & kPositionMask);
    ring.credited = head;
    ++credits_under_way_;
    // By one queue pair, which keeps their order.
    if (!endpoint_->Notify(0, notice)) return false;
  }
  return true;
}

}  // namespace jaxring
