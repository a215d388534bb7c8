// Sends messages over a pair of RDMA links. Every word of a message names the message. For one that does not arrive, or
// arrives with other bytes, the report has the ring's contents and the last events.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/verbs_wire.h"

namespace jaxring::test {

using Clock = std::chrono::steady_clock;

inline void Shell(const std::string& command) {
  if (std::system(command.c_str()) != 0) {
    std::cerr << command << " failed" << std::endl;
    Fail(__FILE__, __LINE__, "the guest's tools work");
  }
}

// Two engines with a link from the first one to the second. `path`: its name, if it is to go on over other ports.
struct Pair {
  explicit Pair(uint32_t slot_bytes = 4096, const std::string& path = "", double link_timeout_s = 10) {
    EngineOptions options{1, slot_bytes, 20};
    options.link_timeout_s = link_timeout_s;
    for (int i = 0; i < 2; ++i) engines.push_back(std::make_unique<ProcessEngine>(options));
    cut = ConnectVerbs(*engines[0], *engines[1], 0, 1, 0, path);
    send = engines[0]->network().links().Send(1, 0);
    recv = engines[1]->network().links().Recv(0, 0);
  }
  ~Pair() {
    if (cut >= 0) close(cut);
  }
  std::vector<std::unique_ptr<ProcessEngine>> engines;
  std::shared_ptr<SendLink> send;
  std::shared_ptr<RecvLink> recv;
  int cut;
};

template <class Done>
bool Within(int seconds, Done done) {
  const auto until = Clock::now() + std::chrono::seconds(seconds);
  for (int tries = 0; !done(); ++tries) {
    if (Clock::now() > until) return false;
    // What waits for long leaves the guest's processors to others.
    if (tries < 1000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return true;
}

// The last events of all threads. A print while other threads still write may miss their newest events.
class Trace {
 public:
  enum What { kReserved, kPublished, kFound, kReleased };
  static Trace& Get() {
    static Trace trace;
    return trace;
  }
  void Add(What what, uint32_t slots, uint64_t position, uint64_t op) {
    events_[next_++ % kEvents] = {what, slots, position, op, Clock::now()};
  }
  // Prints what was done to a slot of the rings of that shape, oldest first.
  void Print(uint32_t slots, uint64_t position) const {
    static constexpr const char* kWords[] = {"sender has taken it for", "sender has published in it",
                                             "receiver has found in it", "receiver has released it after"};
    const auto now = Clock::now();
    const uint64_t end = next_;
    for (uint64_t i = end > kEvents ? end - kEvents : 0; i < end; ++i) {
      const Event& event = events_[i % kEvents];
      if (event.slots != slots || event.position % slots != position % slots) continue;
      std::cerr << "  " << std::chrono::duration<double, std::milli>(now - event.when).count() << " ms ago the "
                << kWords[event.what] << " message " << event.op << std::endl;
    }
  }

 private:
  struct Event {
    What what;
    uint32_t slots;
    uint64_t position, op;
    Clock::time_point when;
  };
  static constexpr uint64_t kEvents = 16384;
  std::array<Event, kEvents> events_{};
  std::atomic<uint64_t> next_{0};
};

inline uint64_t Word(uint64_t op, uint32_t index) { return uint64_t{index} << 32 | (op & 0xffffffff); }

inline void Fill(char* to, uint64_t op, uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += 8) {
    const uint64_t word = Word(op, at / 8);
    std::memcpy(to + at, &word, std::min<uint32_t>(8, bytes - at));
  }
}

// Ends the program: the first thread that finds a fault reports it, other threads wait.
[[noreturn]] inline void Fault(const std::string& what, const RingMemory& ring, uint64_t position, const LinkEnd& end) {
  static std::mutex once;
  once.lock();
  const uint32_t slots = ring.shape().slots;
  std::cerr << "ring of " << slots << " slots: " << what << std::endl;
  if (end.closed) std::cerr << "the link has ended: " << end.reason << std::endl;
  std::cerr << "every position below " << ring.control().head << " is read; in its slots are" << std::endl;
  for (uint32_t i = 0; i < slots; ++i) {
    const SlotHeader& slot = ring.header(i);
    if (slot.flag == 0) continue;
    std::cerr << "  position " << slot.flag - 1 << ": message " << slot.header.op << " of " << slot.header.bytes
              << " bytes" << std::endl;
  }
  std::cerr << "of the slot of position " << position << " at either end:" << std::endl;
  Trace::Get().Print(slots, position);
  Fail(__FILE__, __LINE__, "messages come as they were sent");
}

inline void Send(SendLink& link, Protocol protocol, uint64_t op, uint32_t bytes) {
  RingSender& ring = link.ring(protocol);
  const uint32_t slots = ring.memory().shape().slots;
  uint64_t position;
  bool free = false;
  Within(60, [&] { return (free = ring.Reserve(&position)) || link.end.closed; });
  if (!free) {
    Fault("no slot became free for message " + std::to_string(op), ring.memory(), ring.memory().control().head,
          link.end);
  }
  Trace::Get().Add(Trace::kReserved, slots, position, op);
  Fill(ring.payload(position), op, bytes);
  Trace::Get().Add(Trace::kPublished, slots, position, op);
  ring.Publish(position, {op, 1, 2, 3, 4}, {bytes, 77});
}

inline void CheckPayload(const RecvLink& link, const RingMemory& ring, uint64_t position, uint64_t op, const char* data,
                         uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += 8) {
    const uint32_t size = std::min<uint32_t>(8, bytes - at);
    const uint64_t wanted = Word(op, at / 8);
    if (std::memcmp(data + at, &wanted, size) == 0) continue;
    uint64_t found = 0;
    std::memcpy(&found, data + at, size);
    Fault("message " + std::to_string(op) + " of " + std::to_string(bytes) + " bytes: those from " +
              std::to_string(at) + " on are of message " + std::to_string(found & 0xffffffff) + ", from " +
              std::to_string((found >> 32) * 8) + " on",
          ring, position, link.end);
  }
}

inline void Receive(RecvLink& link, Protocol protocol, uint64_t op, uint32_t bytes) {
  RingReceiver& ring = link.ring(protocol);
  const uint32_t slots = ring.memory().shape().slots;
  uint64_t position;
  const char* data;
  Message message;
  bool found = false;
  Within(60, [&] {
    const bool ended = link.end.closed;
    found = ring.Find({op, 1, 2, 3, 4}, &position, &data, &message);
    return found || ended;
  });
  if (!found) Fault("no message " + std::to_string(op), ring.memory(), ring.memory().control().head, link.end);
  Trace::Get().Add(Trace::kFound, slots, position, op);
  CHECK_EQ(message.bytes, bytes);
  CHECK_EQ(message.check, 77u);
  CheckPayload(link, ring.memory(), position, op, data, bytes);
  Trace::Get().Add(Trace::kReleased, slots, position, op);
  ring.Release(position);
}

}  // namespace jaxring::test
