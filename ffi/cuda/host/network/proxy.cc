#include "cuda/host/network/proxy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/crc32c.h"
#include "base/thread_name.h"
#include "cuda/host/network/proxy_lane.h"

namespace jaxring::cuda {
namespace {

constexpr uint32_t kSeeToOthersEvery = 64;
constexpr int64_t kIdleUs = 10'000'000;

// Announces a message that a NIC has written.
struct Notice {
  uint32_t bytes;
  uint32_t checksum;
};

uint64_t Load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void Store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

// Kernels read lines of data and flag while they are written, so each eight bytes are one store.
void CopyLines(char* to, const char* from, uint64_t bytes) {
  uint64_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, from + at, 8);
    __atomic_store_n(reinterpret_cast<uint64_t*>(to + at), word, __ATOMIC_RELAXED);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

}  // namespace

Proxy::Proxy(Gpu& gpu, Network& network, bool checksums)
    : gpu_(gpu), network_(network), checksums_(checksums), added_(network.MakeDoorbell()), thread_([this] { Run(); }) {}

Proxy::~Proxy() { Stop(); }

void Proxy::Stop() {
  stop_ = true;
  added_->NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Proxy::FindLinks(LaneState& lane) {
  if (lane.send && lane.recv) return;
  Links& links = network_.links();
  if (lane.what.process == ProxySpec::kHere) {
    lane.send = links.LocalSend(lane.what.src, lane.what.dst, 0);
    lane.recv = links.LocalRecv(lane.what.dst, lane.what.src, 0);
    return;
  }
  lane.send = links.Send(lane.what.process, 0);
  lane.recv = links.Recv(lane.what.process, 0);  // exists once the peer has dialled
  if (lane.recv) Invite(lane);
}

// The peer's link to this process uses RDMA if this process's link to the peer does, so the peer waits for this.
void Proxy::Invite(LaneState& lane) {
  const auto receiver = lane.recv->direct.lock();
  if (!lane.direct() || receiver == nullptr) return;
  try {
    lane.invitation = {reinterpret_cast<uint64_t>(lane.recv_slots), lane.slots->Invite(*receiver)};
  } catch (const std::runtime_error& error) {
    lane.damaged = true;
    if (lane.what.broken) lane.what.broken("slots cannot be written " + lane.what.where + ": " + error.what());
  }
}

uint32_t Proxy::Checksum(const void* data, uint32_t bytes) const { return checksums_ ? Crc32c(data, bytes) : 0; }

bool Proxy::SendDirect(LaneState& lane, uint64_t slot, uint32_t bytes, uint32_t call) {
  const auto sender = lane.send->direct.lock();
  uint64_t position;
  RingSender& ring = lane.send->ll;
  if (sender == nullptr || !lane.invited || !ring.Reserve(&position)) return false;
  const char* from = lane.send_slots + slot * lane.what.slot_bytes;
  const Notice notice{bytes, Checksum(from, bytes)};
  std::memcpy(ring.payload(position), &notice, sizeof notice);
  sender->Attach(position, {from, lane.slots->key(), static_cast<uint32_t>(lane.invited->key),
                            lane.invited->slots + slot * lane.what.slot_bytes, bytes});
  ring.Publish(position, lane.Id(true, false, lane.sent), {sizeof notice, call, Checksum(&notice, sizeof notice)});
  ++direct_messages_;
  if (lane.slots->on_gpu()) ++gpu_direct_messages_;
  return true;
}

bool Proxy::Send(LaneState& lane) {
  const uint64_t slot = lane.sent % lane.what.slots, stamp = Load(lane.counters[kTail] + slot);
  if (!Stamp::Has(stamp, lane.sent) || !lane.send) return false;
  const uint32_t bytes = __atomic_load_n(&lane.sizes[slot], __ATOMIC_RELAXED);
  const uint32_t fits = bytes <= lane.what.slot_bytes ? bytes : 0;  // with 0 the peer's kernel finds no message
  if (lane.direct()) {
    if (!SendDirect(lane, slot, fits, Stamp::CallOf(stamp))) return false;
    ++lane.sent;
    ++messages_;
    return true;
  }
  uint64_t position;
  RingSender& ring = lane.send->simple;
  if (!ring.Reserve(&position)) return false;
  std::memcpy(ring.payload(position), lane.send_slots + slot * lane.what.slot_bytes, fits);
  ring.Publish(position, lane.Id(true, false, lane.sent),
               {fits, Stamp::CallOf(stamp), Checksum(ring.payload(position), fits)});
  ++lane.sent;
  ++messages_;
  return true;
}

bool Proxy::SendCredit(LaneState& lane) {
  const uint64_t given = Load(lane.counters[kGive]);
  if ((given == lane.credited && !lane.invitation) || !lane.send) return false;
  uint64_t position;
  if (!lane.send->ll.Reserve(&position)) return false;
  const auto publish = [&](const auto& what) {
    std::memcpy(lane.send->ll.payload(position), &what, sizeof what);
    lane.send->ll.Publish(position, lane.Id(true, true, lane.credit_messages++),
                          {sizeof what, 0, Checksum(&what, sizeof what)});
  };
  // The invitation comes first: before it the peer sends nothing, so there are no credits to return.
  if (lane.invitation) {
    publish(*std::exchange(lane.invitation, std::nullopt));
  } else {
    publish(given);
    lane.credited = given;
  }
  return true;
}

void Proxy::Damaged(LaneState& lane, const MessageId& id, uint32_t bytes) {
  lane.damaged = true;
  network_.unexpected().Discard(id.op);  // nobody takes them any more
  if (!lane.what.broken) return;
  lane.what.broken("message " + std::to_string(id.index) + " of lane " + std::to_string(lane.index) + ", " +
                   std::to_string(bytes) + " bytes, arrived damaged " + lane.what.where +
                   ": its checksum is not the one that was sent. Memory, a device or a driver "
                   "on the way is at fault: look at both hosts' kernel logs. The job has to be restarted.");
}

template <class Use>
bool Proxy::Take(LaneState& lane, const MessageId& id, Use use) {
  if (lane.damaged) return false;
  const auto check = [&](const char* payload, const Message& message) {
    lane.damaged = checksums_ && Checksum(payload, message.bytes) != message.checksum;
    if (!lane.damaged) use(payload, message);
    if (lane.damaged) Damaged(lane, id, message.bytes);
  };
  if (lane.recv) {
    for (RingReceiver* ring : {&lane.recv->simple, &lane.recv->ll}) {
      uint64_t position;
      const char* payload;
      Message message;
      if (!ring->Find(id, &position, &payload, &message)) continue;
      check(payload, message);
      ring->Release(position);
      return true;
    }
  }
  // Run moves what fills a ring there.
  UnexpectedMessages::Entry unexpected;
  if (!network_.unexpected().Take(id, &unexpected)) return false;
  check(unexpected.data.data(), {static_cast<uint32_t>(unexpected.data.size()), unexpected.check, unexpected.checksum});
  return true;
}

bool Proxy::Receive(LaneState& lane) {
  // The peer sends only into slots for which it has a credit, so there is room.
  return Take(lane, lane.Id(false, false, lane.received), [&](const char* payload, const Message& message) {
    const uint64_t slot = lane.received % lane.what.slots;
    char* to = lane.recv_slots + slot * lane.what.slot_bytes;
    if (lane.direct()) {
      Notice notice{};
      if (message.bytes == sizeof notice) std::memcpy(&notice, payload, sizeof notice);
      lane.damaged = message.bytes != sizeof notice || notice.bytes > lane.what.slot_bytes ||
                     (checksums_ && Checksum(to, notice.bytes) != notice.checksum);
      if (lane.damaged) return;
      lane.slots->Flush();
    } else if (message.bytes <= lane.what.slot_bytes) {
      CopyLines(to, payload, message.bytes);
    }
    Store(lane.counters[kArrived] + slot, Stamp::Of(lane.received++, message.check));
  });
}

bool Proxy::ReceiveCredit(LaneState& lane) {
  return Take(lane, lane.Id(false, true, lane.credits), [&](const char* payload, const Message& message) {
    uint64_t given = 0;
    if (message.bytes == sizeof(Invitation)) {
      Invitation invitation;
      std::memcpy(&invitation, payload, sizeof invitation);
      if (!lane.invited) lane.invited = invitation;
    }
    if (message.bytes == sizeof given) std::memcpy(&given, payload, sizeof given);
    if (given > Load(lane.counters[kCredit]) && given <= lane.sent) Store(lane.counters[kCredit], given);
    ++lane.credits;
  });
}

bool Proxy::Move(size_t* lanes) {
  bool moved = false;
  MutexLock lock(mutex_);
  *lanes = lanes_.size();
  for (auto& lane : lanes_) {
    FindLinks(*lane);
    // Credits first, since a peer may wait for room.
    moved |= SendCredit(*lane);
    moved |= ReceiveCredit(*lane);
    moved |= Receive(*lane);
    moved |= Send(*lane);
  }
  return moved;
}

void Proxy::Run() {
  NameThread("jaxring-proxy");
  int idle = 0;
  size_t lanes = 0;
  for (uint32_t round = 0; !stop_; ++round) {
    const uint32_t added = added_->Value(), rung = network_.doorbell().Value();
    const bool moved = Move(&lanes);
    if (lanes == 0) {
      added_->Wait(added, kIdleUs);
      continue;
    }
    if (round % kSeeToOthersEvery == 0) {
      // A ring may be full of messages for lanes that this process has not added yet, and of those of CPU operations
      // that it has not begun. A launching thread may have left events disabled.
      network_.unexpected().TakeOver(network_.links(), true);
      network_.busy_pollers().EnableEvents();
    }
    if (moved) {
      idle = 0;
    } else if (++idle < 100) {
      std::this_thread::yield();
    } else {
      network_.busy_pollers().EnableEvents();
      // A message rings for one thread. It may be for one of the CPU engine's operations, whose workers sleep there,
      // too, and for longer.
      if (network_.doorbell().Wait(rung, std::min(idle - 99, 20) * 10)) network_.doorbell().Notify();
    }
  }
}

}  // namespace jaxring::cuda
