// The ring of slots under every transport: order, wrap-around, full rings, claims, spilling, threads, and two mappings
// of one ring.
#include "transport/core/ring.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "transport/core/link.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kSlot = 256;

struct Counter final : Notifier {
  void Notify() override { ++count; }
  std::atomic<int> count{0};
};

struct Ring {
  explicit Ring(Protocol protocol)
      : memory(LinkMemory::Anonymous(kSlot)),
        sender(memory.ring(protocol), &published),
        receiver(memory.ring(protocol), &released),
        slots(memory.ring(protocol).shape().slots),
        payload(memory.ring(protocol).shape().payload_bytes) {}
  LinkMemory memory;
  Counter published, released;
  RingSender sender;
  RingReceiver receiver;
  const uint32_t slots, payload;
};

MessageId Id(uint64_t op, uint16_t index = 0) { return {op, 1, 2, 3, index}; }

void Fill(char* data, uint32_t bytes, uint64_t seed) {
  for (uint32_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(seed * 31 + i * 7);
}

bool Filled(const char* data, uint32_t bytes, uint64_t seed) {
  std::vector<char> want(bytes);
  Fill(want.data(), bytes, seed);
  return bytes == 0 || std::memcmp(data, want.data(), bytes) == 0;
}

constexpr uint32_t kCheck = 77;

bool Send(RingSender& sender, const MessageId& id, uint32_t bytes) {
  uint64_t position;
  if (!sender.Reserve(&position)) return false;
  Fill(sender.payload(position), bytes, id.op + id.index);
  sender.Publish(position, id, {bytes, kCheck});
  return true;
}

// Finds a message that must be there, checks its content and returns its position.
uint64_t Claim(RingReceiver& receiver, const MessageId& id, uint32_t bytes) {
  uint64_t position;
  const char* data;
  Message got;
  CHECK(receiver.Find(id, &position, &data, &got));
  CHECK_EQ(got.bytes, bytes);
  CHECK_EQ(got.check, kCheck);
  CHECK(Filled(data, bytes, id.op + id.index));
  return position;
}

bool There(RingReceiver& receiver, const MessageId& id) {
  uint64_t position;
  const char* data;
  Message message;
  if (!receiver.Find(id, &position, &data, &message)) return false;
  receiver.Unclaim(position);
  return true;
}

void CheckOrder(Protocol protocol) {
  Ring ring(protocol);
  // Goes around the ring several times with all sizes. Messages are claimed from the newest to the oldest and released
  // in
  // both orders.
  for (uint32_t round = 0; round < 5; ++round) {
    auto size = [&](uint32_t i) { return i == 0 ? 0 : i == 1 ? ring.payload : (i * 37 + round) % ring.payload; };
    for (uint32_t i = 0; i < ring.slots; ++i) CHECK(Send(ring.sender, Id(round, i), size(i)));
    CHECK(!Send(ring.sender, Id(99), 1));
    CHECK_EQ(ring.released.count.load(), static_cast<int>(round));
    std::vector<uint64_t> positions;
    for (uint32_t i = ring.slots; i-- > 0;) positions.push_back(Claim(ring.receiver, Id(round, i), size(i)));
    CHECK(!There(ring.receiver, Id(round, 0)));
    CHECK(!There(ring.receiver, Id(round + 1, 0)));
    for (uint32_t i = 0; i < ring.slots; ++i) {
      ring.receiver.Release(positions[round % 2 ? i : ring.slots - 1 - i]);
    }
    CHECK_EQ(ring.released.count.load(), static_cast<int>(round) + 1);
  }
  CHECK_EQ(ring.published.count.load(), static_cast<int>(5 * ring.slots));
}

// The sender gets room only when the oldest slot is free, even if newer ones were released before.
void CheckElders(Protocol protocol) {
  Ring ring(protocol);
  for (uint32_t i = 0; i < ring.slots; ++i) CHECK(Send(ring.sender, Id(1, i), 8));
  for (uint32_t i = 1; i < ring.slots; ++i) ring.receiver.Release(Claim(ring.receiver, Id(1, i), 8));
  CHECK(!Send(ring.sender, Id(2), 8));
  ring.receiver.Release(Claim(ring.receiver, Id(1, 0), 8));
  CHECK_EQ(ring.released.count.load(), 1);
  for (uint32_t i = 0; i < ring.slots; ++i) CHECK(Send(ring.sender, Id(2, i), 8));
  CHECK(!Send(ring.sender, Id(3), 8));
}

void CheckUnclaim(Protocol protocol) {
  Ring ring(protocol);
  CHECK(Send(ring.sender, Id(1), 10) && Send(ring.sender, Id(2), 20) && Send(ring.sender, Id(1), 30));
  const uint64_t first = Claim(ring.receiver, Id(1), 10);
  const uint64_t twin =
      Claim(ring.receiver, Id(1), 30);  // of messages with equal names, the oldest that is not claimed
  CHECK(!There(ring.receiver, Id(1)));
  ring.receiver.Unclaim(first);
  CHECK_EQ(Claim(ring.receiver, Id(1), 10), first);
  ring.receiver.Unclaim(first);
  uint64_t position;
  MessageId id;
  const char* data;
  Message message;
  for (uint64_t op : {1, 2}) {
    CHECK(ring.receiver.FindNext(&position, &id, &data, &message));
    CHECK(id == Id(op));
    CHECK_EQ(message.bytes, static_cast<uint32_t>(op * 10));
    ring.receiver.Release(position);
  }
  CHECK(!ring.receiver.FindNext(&position, &id, &data, &message));
  ring.receiver.Release(twin);
}

// A reserved slot that is not published yet hides the messages behind it, and only those.
void CheckUnfilled(Protocol protocol) {
  Ring ring(protocol);
  uint64_t position;
  CHECK(Send(ring.sender, Id(1), 8) && ring.sender.Reserve(&position) && Send(ring.sender, Id(3), 8));
  CHECK(There(ring.receiver, Id(1)) && !There(ring.receiver, Id(3)));
  Fill(ring.sender.payload(position), 8, 2);
  ring.sender.Publish(position, Id(2), {8, kCheck});
  CHECK(There(ring.receiver, Id(2)) && There(ring.receiver, Id(3)));
}

// In a full ring some messages were read and some are claimed: spilling hands out the others in order, each once.
void CheckSpill(Protocol protocol, uint32_t pattern) {
  enum Fate { kUnwanted, kRead, kHeld };
  Ring ring(protocol);
  for (uint32_t i = 0; i < pattern % 5; ++i) {
    CHECK(Send(ring.sender, Id(9, i), 8));
    ring.receiver.Release(Claim(ring.receiver, Id(9, i), 8));
  }
  std::vector<uint16_t> spilled, unwanted;
  auto take = [&](const MessageId& id, const char* data, Message message) {
    CHECK(message.bytes == id.index && message.check == kCheck && Filled(data, message.bytes, id.op + id.index));
    spilled.push_back(id.index);
  };
  for (uint32_t i = 0; i < ring.slots; ++i) {
    ring.receiver.SpillIfFull(take);
    CHECK(Send(ring.sender, Id(1, i), i));
  }
  CHECK(spilled.empty());
  std::vector<uint64_t> held;
  uint32_t digits = pattern;
  for (uint32_t i = 0; i < ring.slots; ++i, digits = digits / 3 + digits % 3 * 2187) {
    if (digits % 3 == kUnwanted) unwanted.push_back(static_cast<uint16_t>(i));
    if (digits % 3 == kRead) ring.receiver.Release(Claim(ring.receiver, Id(1, i), i));
    if (digits % 3 == kHeld) held.push_back(Claim(ring.receiver, Id(1, i), i));
  }
  ring.receiver.SpillIfFull(take);
  if (pattern % 3 == kRead) {  // the oldest slot was free already, so the ring was not full
    CHECK(spilled.empty());
    for (uint16_t i : unwanted) ring.receiver.Release(Claim(ring.receiver, Id(1, i), i));
  } else {
    CHECK(spilled == unwanted);
  }
  const bool room = pattern % 3 != kHeld;
  CHECK_EQ(Send(ring.sender, Id(2), 8), room);
  for (uint64_t position : held) ring.receiver.Release(position);
  if (room) ring.receiver.Release(Claim(ring.receiver, Id(2), 8));
  // No message is left, and the whole ring can be used.
  for (uint32_t i = 0; i < ring.slots; ++i) CHECK(Send(ring.sender, Id(3, i), 8));
  CHECK(!Send(ring.sender, Id(4), 8));
  for (uint32_t i = 0; i < ring.slots; ++i) ring.receiver.Release(Claim(ring.receiver, Id(3, i), 8));
}

// The test's queue of unexpected messages, which keeps only their names.
class Spilled {
 public:
  void Put(const MessageId& id) {
    std::lock_guard lock(mutex_);
    ids_.push_back(id);
  }
  bool Take(const MessageId& id) {
    std::lock_guard lock(mutex_);
    auto it = std::find(ids_.begin(), ids_.end(), id);
    if (it == ids_.end()) return false;
    ids_.erase(it);
    return true;
  }

 private:
  std::mutex mutex_;
  std::vector<MessageId> ids_;
};

// Several flows, each with a sending and a receiving thread, and one thread that spills: every message is received once
// and undamaged.
void CheckThreads(RingSender& sender, RingReceiver& receiver, int flows, bool spill) {
  constexpr uint16_t kMessages = 1000;
  const uint32_t payload = sender.memory().shape().payload_bytes;
  auto size = [payload](uint16_t index) { return index * 61u % (payload + 1); };
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  auto again = [limit] {
    CHECK(std::chrono::steady_clock::now() < limit);
    std::this_thread::yield();
  };
  Spilled spilled;
  std::atomic<int> receiving{flows};
  std::vector<std::thread> threads;
  for (int flow = 0; flow < flows; ++flow) {
    threads.emplace_back([&, flow] {
      for (uint16_t i = 0; i < kMessages; ++i) {
        while (!Send(sender, Id(flow, i), size(i))) again();
      }
    });
    threads.emplace_back([&, flow] {
      for (uint16_t i = 0; i < kMessages; ++i) {
        const MessageId id = Id(flow, i);
        uint64_t position;
        const char* data;
        Message message;
        if (i % 7 == 3) There(receiver, id);
        while (true) {
          if (receiver.Find(id, &position, &data, &message)) {
            CHECK(message.bytes == size(i) && Filled(data, message.bytes, id.op + i));
            receiver.Release(position);
            break;
          }
          if (spilled.Take(id)) break;
          again();
        }
      }
      --receiving;
    });
  }
  while (spill && receiving != 0) {
    receiver.SpillIfFull([&](const MessageId& id, const char* data, Message message) {
      CHECK(message.bytes == size(id.index) && Filled(data, message.bytes, id.op + id.index));
      spilled.Put(id);
    });
    again();
  }
  for (std::thread& thread : threads) thread.join();
}

void CheckMappings(Protocol protocol) {
  LinkMemory ours = LinkMemory::Shared(kSlot);
  const std::string path = "/proc/self/fd/" + std::to_string(ours.fd());
  LinkMemory theirs = LinkMemory::Open(path, kSlot);
  RingSender sender(ours.ring(protocol), nullptr);
  RingReceiver receiver(theirs.ring(protocol), nullptr);
  // One flow only: through a second mapping ThreadSanitizer does not see what orders two senders.
  CheckThreads(sender, receiver, 1, false);
  bool refused = false;
  try {
    LinkMemory::Open(path, 2 * kSlot);
  } catch (const std::system_error& error) {
    refused = std::string(error.what()).find("JAXRING_BUFFSIZE") != std::string::npos;
  }
  CHECK(refused);
}

CASE("messages come in order") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) CheckOrder(protocol);
}

CASE("a slot is free once older ones are") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) CheckElders(protocol);
}

CASE("a claimed message is given back") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) CheckUnclaim(protocol);
}

CASE("a slot that is not published hides later ones") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) CheckUnfilled(protocol);
}

CASE("a full ring is emptied") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
    for (uint32_t pattern = 0; pattern < 6561; ++pattern) CheckSpill(protocol, pattern);
  }
}

CASE("a patient call empties a ring that is as full as it was at the one before") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
    Ring ring(protocol);
    std::vector<uint16_t> spilled;
    const auto take = [&](const MessageId& id, const char*, Message) { spilled.push_back(id.index); };
    uint16_t sent = 0;
    while (Send(ring.sender, Id(1, sent), 8)) ++sent;
    ring.receiver.SpillIfFull(take, true);
    ring.receiver.Release(Claim(ring.receiver, Id(1, 0), 8));
    CHECK(Send(ring.sender, Id(1, sent), 8));
    ring.receiver.SpillIfFull(take, true);  // somebody has read one in between
    CHECK(spilled.empty());
    ring.receiver.SpillIfFull(take, true);
    CHECK_EQ(spilled.size(), sent);
    CHECK_EQ(spilled.back(), sent);
  }
}

CASE("threads share a ring") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
    for (bool spill : {false, true}) {
      Ring ring(protocol);
      CheckThreads(ring.sender, ring.receiver, spill ? 12 : 4, spill);
    }
  }
}

CASE("two mappings of one ring") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) CheckMappings(protocol);
}

}  // namespace
}  // namespace jaxring::test
