// The two pumps of an RDMA link: one writes the messages of the sender's rings into the receiver's rings, the other
// reports how far these were read.
#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "transport/verbs/verbs_mover.h"

namespace jaxring {
namespace {

// A notice says message or credit, names one of the two rings, and holds the low bits of the position.
constexpr uint32_t kCredit = uint32_t{1} << 31;
constexpr int kProtocolShift = 30;
constexpr uint32_t kPositionMask = (uint32_t{1} << kProtocolShift) - 1;
// One in this many LL messages of a connection asks for its completion. It is less than the ring's slots, so that some
// slot is always about to be freed.
constexpr int kSignalEvery = 8;
constexpr auto kDrain = std::chrono::seconds(5);
constexpr auto kAcknowledged = std::chrono::seconds(1);

// The position with the notice's low bits that is not below `from`.
uint64_t Expand(uint32_t notice, uint64_t from) {
  return from + ((notice - static_cast<uint32_t>(from)) & kPositionMask);
}

}  // namespace

VerbsSendPump::VerbsSendPump(std::unique_ptr<verbs::Endpoint> endpoint, Descriptor socket, Poller* poller,
                             const std::shared_ptr<SendLink>& link, Notifier* own_doorbell, BusyPollers* busy_pollers,
                             OnEnd on_end)
    : VerbsPump(link, std::move(endpoint), std::move(socket), poller, &link->end, own_doorbell, busy_pollers,
                std::move(on_end)),
      rings_{Ring(link->memory.ring(Protocol::kLL), own_doorbell),
             Ring(link->memory.ring(Protocol::kSimple), own_doorbell)},
      pieces_(rings_[0].memory.shape().slots),
      queues_(endpoint_->queue_pairs()),
      signal_every_(std::max(1, kSignalEvery / endpoint_->queue_pairs())) {}

const std::string& VerbsSendPump::device() const { return mover().device(); }

uint32_t VerbsSendPump::Register(const DirectRegion& region) { return mover().Register(region); }

bool VerbsSendPump::Handle(const Event& event) {
  if (event.notice) {
    const uint32_t notice = static_cast<uint32_t>(event.value);
    Ring& ring = rings_[notice >> kProtocolShift & 1];
    const uint64_t head = Expand(notice, ring.peer_head);
    if (!(notice & kCredit) || head > ring.next) return Misbehaved();
    ring.peer_head = head;
    return true;
  }
  // Writes of a queue pair complete in order, so the earlier ones are complete, too.
  auto& sent = queues_[event.queue_pair].sent;
  while (!sent.empty() && sent.front().id <= event.value) {
    acked_ += BytesOf(sent.front());
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
      // Messages are claimed in the order of their positions, so this one is at `next`.
      const uint64_t position = ring.next++;
      ring.held = false;
      Written& written = ring.written[position % ring.written.size()];
      written.bytes = ring.message.bytes;
      if (protocol == 0) written.piece = std::exchange(pieces_[position % pieces_.size()], {});
      if (!Write(ring, protocol, position)) return false;
    }
  }
  return true;
}

void VerbsSendPump::Attach(uint64_t position, const DirectPiece& piece) { pieces_[position % pieces_.size()] = piece; }

bool VerbsSendPump::Waiting() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const Queue& queue) { return !queue.sent.empty(); });
}

bool VerbsSendPump::Write(Ring& ring, uint32_t protocol, uint64_t position) {
  const Written& written = ring.written[position % ring.written.size()];
  const int index = static_cast<int>(next_queue_++ % queues_.size());
  Queue& queue = queues_[index];
  const bool signaled = protocol != 0 || ++queue.unsignaled >= signal_every_;
  if (signaled) queue.unsignaled = 0;
  const uint64_t id = queue.next_id++;
  if (signaled) queue.asked = id;
  queue.sent.push_back({id, &ring, position});
  if (protocol == 0) {
    // Posted before the message on the same queue pair, so that the bytes have arrived when the notice does.
    DirectPiece piece = written.piece;
    if (const auto it = own_keys_.find(piece.key); it != own_keys_.end()) piece.key = it->second;
    if (const auto it = peer_keys_.find(piece.to_key); it != peer_keys_.end()) piece.to_key = it->second;
    if (!endpoint_->WriteDirect(index, piece)) return false;
  }
  // Writes the slot without its flag, up to the payload's end.
  const char* begin = reinterpret_cast<const char*>(&ring.memory.header(position)) + sizeof(SlotHeader::flag);
  const char* end = ring.memory.payload(position) + written.bytes;
  const uint32_t notice = protocol << kProtocolShift | (static_cast<uint32_t>(position) & kPositionMask);
  return endpoint_->Write(index, begin, static_cast<uint32_t>(end - begin), notice, id, signaled);
}

int64_t VerbsSendPump::BytesOf(const Sent& sent) {
  if (sent.ring == nullptr) return 0;
  const Written& written = sent.ring->written[sent.position % sent.ring->written.size()];
  return int64_t{written.bytes} + written.piece.bytes;
}

bool VerbsSendPump::Mark(bool also_idle) {
  for (size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = queues_[i];
    if (queue.sent.empty() ? !also_idle || i > 0 : queue.unsignaled == 0) continue;
    queue.unsignaled = 0;
    queue.sent.push_back({queue.next_id, nullptr, 0});
    queue.asked = queue.next_id;
    if (!endpoint_->Mark(static_cast<int>(i), queue.next_id++)) return false;
  }
  return true;
}

void VerbsSendPump::SayGoodbye() {
  // When a process ends, its queue pairs end, and messages that the peer's device has not acknowledged are lost.
  const auto until = std::chrono::steady_clock::now() + kDrain;
  while (true) {
    {
      MutexLock lock(mutex_);
      PumpLocked();
      if (closed()) return;
      if (!WaitsForCredit() && !Waiting()) break;
      if (!lost() && !Mark(false)) return End(endpoint_->failure().error, true);
    }
    if (std::chrono::steady_clock::now() > until) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  {
    MutexLock lock(mutex_);
    control_.SayGoodbye(std::to_string(rings_[0].next) + " " + std::to_string(rings_[1].next));
  }
  // soft-iWARP completes writes that are still in the socket's queue, which the end of this process may discard.
  const auto acknowledged_by = std::chrono::steady_clock::now() + kAcknowledged;
  while (std::chrono::steady_clock::now() < acknowledged_by) {
    {
      MutexLock lock(mutex_);
      PumpLocked();
      if (closed() || Listen() || control_.acknowledged()) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

VerbsRecvPump::VerbsRecvPump(std::unique_ptr<verbs::Endpoint> endpoint, Descriptor socket, Poller* poller,
                             const std::shared_ptr<RecvLink>& link, Notifier* own_doorbell, BusyPollers* busy_pollers,
                             OnEnd on_end)
    : VerbsPump(link, std::move(endpoint), std::move(socket), poller, &link->end, own_doorbell, busy_pollers,
                std::move(on_end)),
      rings_{Ring{link->memory.ring(Protocol::kLL)}, Ring{link->memory.ring(Protocol::kSimple)}} {}

const std::string& VerbsRecvPump::device() const { return mover().device(); }

uint32_t VerbsRecvPump::Register(const DirectRegion& region) { return mover().Register(region); }

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
  own_doorbell_->Notify();
  return true;
}

void VerbsRecvPump::OnGoodbye(const std::string& words) { std::istringstream(words) >> sent_[0] >> sent_[1]; }

bool VerbsRecvPump::AllHere() const { return rings_[0].received >= sent_[0] && rings_[1].received >= sent_[1]; }

bool VerbsRecvPump::Advance() {
  for (uint32_t protocol : {0, 1}) {
    Ring& ring = rings_[protocol];
    RingControl& control = ring.memory.control();
    const uint32_t slots = ring.memory.shape().slots;
    // A thread that moves the head after this sees sender_waits and calls the pump.
    control.sender_waits.store(1, std::memory_order_seq_cst);
    const uint64_t head = control.head.load(std::memory_order_seq_cst);
    const bool all_used = ring.received == ring.credited + slots;
    if (head == ring.credited || (head - ring.credited < slots / 2 && !all_used)) continue;
    if (credits_under_way_ >= static_cast<int>(verbs::kNotices)) continue;  // the next completion tries again
    const uint32_t notice = kCredit | protocol << kProtocolShift | (static_cast<uint32_t>(head) & kPositionMask);
    ring.credited = head;
    ++credits_under_way_;
    // All credits go by one queue pair, which keeps their order.
    if (!endpoint_->Notify(0, notice)) return false;
  }
  return true;
}

}  // namespace jaxring
