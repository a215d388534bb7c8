#include "cuda/host/network/carrier.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/crc32c.h"
#include "cuda/host/network/carrier_line.h"

namespace jaxring::cuda {
namespace {

// Of a message that a NIC has written.
struct Note {
  uint32_t bytes;
  uint32_t checksum;
};

uint64_t Load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void Store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

// Kernels see lines of data and flag while they are written, so each eight bytes are stored at once.
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

Carrier::Carrier(Gpu& gpu, Engine& engine) : gpu_(gpu), engine_(engine), thread_([this] { Run(); }) {}

Carrier::~Carrier() { Stop(); }

void Carrier::Stop() {
  stop_ = true;
  engine_.bell().NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Carrier::FindLinks(Line& line) {
  if (line.send && line.recv) return;
  Links& links = engine_.links();
  if (line.what.process == Carried::kHere) {
    line.send = links.LocalSend(line.what.src, line.what.dst, 0);
    line.recv = links.LocalRecv(line.what.dst, line.what.src, 0);
    return;
  }
  line.send = links.Send(line.what.process, 0);
  line.recv = links.Recv(line.what.process, 0);  // there once the peer has dialled
  if (line.recv) Invite(line);
}

// The peer's link to us is by RDMA as ours to it is, so it waits for this.
void Carrier::Invite(Line& line) {
  const auto receiver = line.recv->direct.lock();
  if (!line.direct() || receiver == nullptr) return;
  try {
    line.invitation = {reinterpret_cast<uint64_t>(line.recv_slots), line.slots->Invite(*receiver)};
  } catch (const std::runtime_error& error) {
    line.damaged = true;
    if (line.what.broken) line.what.broken("slots cannot be written " + line.what.where + ": " + error.what());
  }
}

uint32_t Carrier::Checksum(const void* data, uint32_t bytes) const {
  return engine_.options().checksums ? Crc32c(data, bytes) : 0;
}

bool Carrier::SendDirect(Line& line, uint64_t slot, uint32_t bytes) {
  const auto sender = line.send->direct.lock();
  uint64_t position;
  RingSender& ring = line.send->ll;
  if (sender == nullptr || !line.invited || !ring.Reserve(&position)) return false;
  const char* from = line.send_slots + slot * line.what.slot_bytes;
  const Note note{bytes, Checksum(from, bytes)};
  std::memcpy(ring.payload(position), &note, sizeof note);
  sender->Attach(position, {from, line.slots->key(), static_cast<uint32_t>(line.invited->key),
                            line.invited->slots + slot * line.what.slot_bytes, bytes});
  ring.Publish(position, line.Id(true, false, line.sent), {sizeof note, 0, Checksum(&note, sizeof note)});
  ++direct_messages_;
  if (line.slots->on_gpu()) ++gpu_direct_messages_;
  return true;
}

bool Carrier::Send(Line& line) {
  if (Load(line.counters[kTail]) == line.sent || !line.send) return false;
  const uint64_t slot = line.sent % line.what.slots;
  const uint32_t bytes = __atomic_load_n(&line.sizes[slot], __ATOMIC_RELAXED);
  const uint32_t fits = bytes <= line.what.slot_bytes ? bytes : 0;  // the peer's kernel then finds no message
  if (line.direct()) {
    if (!SendDirect(line, slot, fits)) return false;
    ++line.sent;
    ++messages_;
    return true;
  }
  uint64_t position;
  RingSender& ring = line.send->simple;
  if (!ring.Reserve(&position)) return false;
  std::memcpy(ring.payload(position), line.send_slots + slot * line.what.slot_bytes, fits);
  ring.Publish(position, line.Id(true, false, line.sent), {fits, 0, Checksum(ring.payload(position), fits)});
  ++line.sent;
  ++messages_;
  return true;
}

bool Carrier::SendCredit(Line& line) {
  const uint64_t given = Load(line.counters[kGive]);
  if ((given == line.credited && !line.invitation) || !line.send) return false;
  uint64_t position;
  if (!line.send->ll.Reserve(&position)) return false;
  const auto publish = [&](const auto& what) {
    std::memcpy(line.send->ll.payload(position), &what, sizeof what);
    line.send->ll.Publish(position, line.Id(true, true, line.credit_messages++),
                          {sizeof what, 0, Checksum(&what, sizeof what)});
  };
  // Nothing comes, and so nothing is given, before the invitation.
  if (line.invitation) {
    publish(*std::exchange(line.invitation, std::nullopt));
  } else {
    publish(given);
    line.credited = given;
  }
  return true;
}

void Carrier::Damaged(Line& line, const MessageId& id, uint32_t bytes) {
  line.damaged = true;
  if (!line.what.broken) return;
  line.what.broken("message " + std::to_string(id.index) + " of lane " + std::to_string(id.lane) + ", " +
                   std::to_string(bytes) + " bytes, arrived damaged " + line.what.where +
                   ": its checksum is not the one that was sent. Memory, a device or a driver "
                   "on the way is at fault: look at both hosts' kernel logs. The job has to be restarted.");
}

template <class Use>
bool Carrier::Take(Line& line, const MessageId& id, Use use) {
  if (line.damaged) return false;
  const auto check = [&](const char* payload, uint32_t bytes, uint32_t checksum) {
    line.damaged = engine_.options().checksums && Checksum(payload, bytes) != checksum;
    if (!line.damaged) use(payload, bytes);
    if (line.damaged) Damaged(line, id, bytes);
  };
  if (line.recv) {
    for (RingReceiver* ring : {&line.recv->simple, &line.recv->ll}) {
      uint64_t position;
      const char* payload;
      Message message;
      if (!ring->Find(id, &position, &payload, &message)) continue;
      check(payload, message.bytes, message.checksum);
      ring->Release(position);
      return true;
    }
  }
  // A worker of the engine moves what fills a ring to the unexpected-message queue.
  UnexpectedMessages::Entry unexpected;
  if (!engine_.unexpected().Take(id, &unexpected)) return false;
  check(unexpected.data.data(), static_cast<uint32_t>(unexpected.data.size()), unexpected.checksum);
  return true;
}

bool Carrier::Receive(Line& line) {
  // The peer sends only into slots that were given back, so there is room for whatever comes.
  return Take(line, line.Id(false, false, line.received), [&](const char* payload, uint32_t bytes) {
    char* to = line.recv_slots + line.received % line.what.slots * line.what.slot_bytes;
    if (line.direct()) {
      Note note{};
      if (bytes == sizeof note) std::memcpy(&note, payload, sizeof note);
      line.damaged = bytes != sizeof note || note.bytes > line.what.slot_bytes ||
                     (engine_.options().checksums && Checksum(to, note.bytes) != note.checksum);
      if (line.damaged) return;
      line.slots->Flush();
    } else if (bytes <= line.what.slot_bytes) {
      CopyLines(to, payload, bytes);
    }
    Store(line.counters[kArrived], ++line.received);
  });
}

bool Carrier::ReceiveCredit(Line& line) {
  return Take(line, line.Id(false, true, line.credits), [&](const char* payload, uint32_t bytes) {
    uint64_t given = 0;
    if (bytes == sizeof(Invitation)) {
      Invitation invitation;
      std::memcpy(&invitation, payload, sizeof invitation);
      if (!line.invited) line.invited = invitation;
    }
    if (bytes == sizeof given) std::memcpy(&given, payload, sizeof given);
    if (given > Load(line.counters[kCredit]) && given <= line.sent) Store(line.counters[kCredit], given);
    ++line.credits;
  });
}

void Carrier::Run() {
  int idle = 0;
  while (!stop_) {
    const uint32_t seen = engine_.bell().Value();
    bool moved = false;
    size_t lines;
    {
      std::lock_guard lock(mutex_);
      lines = lines_.size();
      for (auto& line : lines_) {
        FindLinks(*line);
        // Counts first: a peer may wait for room.
        moved |= SendCredit(*line);
        moved |= ReceiveCredit(*line);
        moved |= Receive(*line);
        moved |= Send(*line);
      }
    }
    if (moved) {
      idle = 0;
    } else if (lines == 0) {
      engine_.bell().Wait(seen, 100'000);
    } else if (++idle < 100) {
      std::this_thread::yield();
    } else {
      engine_.bell().Wait(seen, std::min(idle - 99, 20) * 10);
    }
  }
}

}  // namespace jaxring::cuda
