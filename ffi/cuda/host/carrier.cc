#include "ffi/cuda/host/carrier.h"

#include <cstring>
#include <stdexcept>

#include "ffi/transport/crc32c.h"

namespace jaxring::cuda {
namespace {

enum Counter { kTail = 0, kArrived, kCredit, kGive, kCounters };
// The last bit of a message's operation: data one way, counts of read slots the other.
constexpr uint64_t kCreditBit = 1;

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

// Numbers count messages since the beginning. `sent` and `credited` are what went to the peer so far, `received` and
// `credits` what came.
struct Carrier::Line {
  Carried what;
  char *send_slots, *recv_slots;
  uint64_t* counters[kCounters];
  uint32_t* sizes;
  uint64_t sent = 0, received = 0, credited = 0, credit_messages = 0, credits = 0;
  std::shared_ptr<SendLink> send;
  std::shared_ptr<RecvLink> recv;
  bool damaged = false;

  MessageId Id(bool outgoing, bool credit, uint64_t number) const {
    const uint64_t op = (what.name << 1) | (credit ? kCreditBit : 0);
    const auto src = static_cast<uint32_t>(outgoing ? what.src : what.dst);
    const auto dst = static_cast<uint32_t>(outgoing ? what.dst : what.src);
    return {op, src, dst, static_cast<uint16_t>(what.lane), static_cast<uint16_t>(number)};
  }
};

Carrier::Carrier(Gpu& gpu, Engine& engine) : gpu_(gpu), engine_(engine), thread_([this] { Run(); }) {}

Carrier::~Carrier() { Stop(); }

void Carrier::Stop() {
  stop_ = true;
  engine_.bell().NotifyAll();
  if (thread_.joinable()) thread_.join();
}

Connection Carrier::Carry(const Carried& carried) {
  if (carried.slot_bytes > engine_.links().slot_bytes()) {
    throw std::invalid_argument("slots of " + std::to_string(carried.slot_bytes) +
                                " bytes are longer than messages between processes: raise JAXRING_BUFFSIZE");
  }
  if (carried.slots * 2 > 0x10000 || carried.lane > 0xFFFF) throw std::invalid_argument("too many slots or lanes");
  auto line = std::make_unique<Line>();
  line->what = carried;
  const uint64_t area = carried.slots * carried.slot_bytes;
  const uint64_t sizes = (carried.slots * sizeof(uint32_t) + kLineBytes - 1) / kLineBytes * kLineBytes;
  char* memory = gpu_.AllocatePinned(2 * area + kCounters * kLineBytes + sizes);
  line->send_slots = memory;
  line->recv_slots = memory + area;
  for (int c = 0; c < kCounters; ++c)
    line->counters[c] = reinterpret_cast<uint64_t*>(memory + 2 * area + c * kLineBytes);
  line->sizes = reinterpret_cast<uint32_t*>(memory + 2 * area + kCounters * kLineBytes);
  Connection connection{};
  connection.send_slots = line->send_slots;
  connection.recv_slots = line->recv_slots;
  connection.tail = line->counters[kTail];
  connection.arrived = line->counters[kArrived];
  connection.credit = line->counters[kCredit];
  connection.give = line->counters[kGive];
  connection.sizes = line->sizes;
  {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  engine_.bell().NotifyAll();
  return connection;
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
}

uint32_t Carrier::Checksum(const void* data, uint32_t bytes) const {
  return engine_.options().checksums ? Crc32c(data, bytes) : 0;
}

bool Carrier::Send(Line& line) {
  if (Load(line.counters[kTail]) == line.sent || !line.send) return false;
  uint64_t position;
  RingSender& ring = line.send->simple;
  if (!ring.Reserve(&position)) return false;
  const uint64_t slot = line.sent % line.what.slots;
  const uint32_t bytes = __atomic_load_n(&line.sizes[slot], __ATOMIC_RELAXED);
  const uint32_t fits = bytes <= line.what.slot_bytes ? bytes : 0;  // the peer's kernel then finds no message
  std::memcpy(ring.payload(position), line.send_slots + slot * line.what.slot_bytes, fits);
  ring.Publish(position, line.Id(true, false, line.sent), {fits, 0, Checksum(ring.payload(position), fits)});
  ++line.sent;
  ++messages_;
  return true;
}

bool Carrier::SendCredit(Line& line) {
  const uint64_t given = Load(line.counters[kGive]);
  if (given == line.credited || !line.send) return false;
  uint64_t position;
  if (!line.send->ll.Reserve(&position)) return false;
  std::memcpy(line.send->ll.payload(position), &given, sizeof given);
  line.send->ll.Publish(position, line.Id(true, true, line.credit_messages++),
                        {sizeof given, 0, Checksum(&given, sizeof given)});
  line.credited = given;
  return true;
}

template <class Use>
bool Carrier::Take(Line& line, const MessageId& id, Use use) {
  if (line.damaged) return false;
  const auto check = [&](const char* payload, uint32_t bytes, uint32_t checksum) {
    line.damaged = engine_.options().checksums && Checksum(payload, bytes) != checksum;
    if (!line.damaged) return use(payload, bytes);
    if (line.what.damaged)
      line.what.damaged("message " + std::to_string(id.index) + " of lane " + std::to_string(id.lane) + ", " +
                        std::to_string(bytes) + " bytes,");
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
  // A worker of the engine moves what fills a ring to the stash.
  Stash::Stashed stashed;
  if (!engine_.stash().Take(id, &stashed)) return false;
  check(stashed.data.data(), static_cast<uint32_t>(stashed.data.size()), stashed.checksum);
  return true;
}

bool Carrier::Receive(Line& line) {
  // The peer sends only into slots that were given back, so there is room for whatever comes.
  return Take(line, line.Id(false, false, line.received), [&](const char* payload, uint32_t bytes) {
    const uint64_t slot = line.received % line.what.slots;
    if (bytes <= line.what.slot_bytes) CopyLines(line.recv_slots + slot * line.what.slot_bytes, payload, bytes);
    Store(line.counters[kArrived], ++line.received);
  });
}

bool Carrier::ReceiveCredit(Line& line) {
  return Take(line, line.Id(false, true, line.credits), [&](const char* payload, uint32_t bytes) {
    uint64_t given = 0;
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
