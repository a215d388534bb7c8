// RDMA links that go on over other ports: run in the guest of `make test-rdma`, with a device at each end of one cable
// in JAXRING_TEST_VERBS and of another one in JAXRING_TEST_VERBS_SPARE (see tests/rdma/guest/inside.sh). The traffic is
// the same as on one cable, beside bytes that are written past the slots, and none of it may be lost, doubled or
// damaged.
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transport/rdma/traffic.h"

namespace jaxring::test {
namespace {

const std::string kName = "a";
const Paths::End kFrom{kName, true}, kTo{kName, false};

verbs::EndpointOptions Device(int pair, int end) {
  verbs::EndpointOptions options = VerbsDevices(pair == 0 ? "JAXRING_TEST_VERBS" : "JAXRING_TEST_VERBS_SPARE").at(end);
  // As by default. A device that sends again soon fills a slow cable with that, so that nothing gets through.
  options.timeout = verbs::EndpointOptions{}.timeout;
  return options;
}

std::string Interface(int pair, int end) {
  return verbs::ReadLine("/sys/class/infiniband/" + Device(pair, end).device + "/parent");
}

// A link between two engines, and what jaxring/world/failover.py does when it fails.
class Moved {
 public:
  explicit Moved(uint32_t seed, double link_timeout_s = 60, uint32_t slot_bytes = 4096)
      : pair_(slot_bytes, kName, link_timeout_s), random_(seed) {
    close(std::exchange(pair_.cut, -1));  // its end is to be seen
  }

  Pair& pair() { return pair_; }
  int now() const { return now_; }
  int moves() const { return moves_; }
  // How it has failed. To be read when Heal has returned.
  const std::string& whys() const { return whys_; }

  // False if an attempt fails; sometimes it is given up on the way.
  bool Move(int pair) {
    std::lock_guard lock(mutex_);
    ++attempt_;
    try {
      const auto from = pair_.engines[0]->paths().Link(kFrom), to = pair_.engines[1]->paths().Link(kTo);
      const std::string offer = from->Offer(attempt_, PlaceOf(Device(pair, 0)));
      const std::string theirs = to->Offer(attempt_, PlaceOf(Device(pair, 1)));
      to->Prepare(attempt_, offer);
      if (random_() % 16 == 0) return false;
      from->Prepare(attempt_, theirs);
      from->Try(attempt_, 1);
      if (random_() % 16 == 0) return false;
      const std::string received = to->Switch(attempt_, "");
      if (random_() % 8 == 0) return false;
      int fds[2];
      CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
      to->TakeOver(attempt_, fds[1]);
      if (random_() % 8 == 0) return close(fds[0]), false;
      from->Switch(attempt_, received);
      from->TakeOver(attempt_, fds[0]);
      pair_.engines[0]->paths().Switched(kFrom, pair != 0);
      now_ = pair;
      ++moves_;
      return true;
    } catch (const std::runtime_error&) {
      return false;
    } catch (const std::invalid_argument&) {
      return false;
    }
  }

  // Has the link go on wherever it can, until the engine ends.
  void Heal() {
    Paths& paths = pair_.engines[0]->paths();
    while (auto lost = paths.TakeLost(0.1)) {
      for (const Paths::Lost& each : *lost) whys_ += each.why + "; ";
      for (int next = 1 - now_; !lost->empty() && paths.IsLost(kFrom); next = 1 - next) {
        if (!Move(next)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }

 private:
  Pair pair_;
  std::mutex mutex_;
  std::mt19937 random_;
  uint64_t attempt_ = 0;
  std::string whys_;
  std::atomic<int> now_{0}, moves_{0};
};

// Messages of both rings, those of LL with bytes that are written directly, until it is stopped.
class Traffic {
 public:
  explicit Traffic(Moved& moved) : moved_(moved), link_(*moved.pair().send), from_(kBytes), to_(kBytes) {
    for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
      threads_.emplace_back([this, protocol] { Publish(protocol); });
      threads_.emplace_back([this, protocol] { Take(protocol); });
    }
  }
  // Returns how many messages there were.
  uint64_t Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    CHECK(!moved_.pair().send->end.closed && !moved_.pair().recv->end.closed);
    return counts_[0] + counts_[1];
  }

 private:
  // Half of the pieces are of memory that is registered after the link has moved.
  static constexpr uint64_t kRoom = 16, kMost = 3000, kBytes = 2 * kRoom * kMost;

  static int Index(Protocol protocol) { return protocol == Protocol::kSimple; }
  static uint32_t PieceBytes(uint64_t op) { return op % 5 == 0 ? 0 : static_cast<uint32_t>(op * 7919 % (kMost + 1)); }
  uint32_t Bytes(Protocol protocol, uint64_t op) const {
    const uint32_t most = link_.ring(protocol).memory().shape().payload_bytes;
    return op % 7 == 0 ? most : static_cast<uint32_t>(op * 997 % (most + 1));
  }

  struct Half {
    uint32_t key = 0, to_key = 0;
    bool known = false;
  };
  // Which half of the memory a message's piece is in, registered when it is first used.
  size_t HalfOf(uint64_t op) {
    const size_t half = moved_.moves() > 0 ? op % 2 : 0;
    Half& known = halves_[half];
    if (!known.known) {
      const size_t at = half * kBytes / 2;
      known.key = moved_.pair().send->direct.lock()->Register({from_.data() + at, kBytes / 2});
      known.to_key = moved_.pair().recv->direct.lock()->Register({to_.data() + at, kBytes / 2});
      known.known = true;
    }
    return half;
  }

  void Publish(Protocol protocol) {
    uint64_t op = 0;
    for (; !stop_; ++op) {
      if (protocol == Protocol::kLL) {
        PublishPiece(op);
      } else {
        Send(link_, protocol, op, Bytes(protocol, op));
      }
      // What is sent one by one is not behind anything.
      if (op % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(op % 20));
    }
    counts_[Index(protocol)] = op;
    done_[Index(protocol)] = true;
  }

  void PublishPiece(uint64_t op) {
    CHECK(Within(100, [&] { return read_ + kRoom > op; }));
    const size_t half = HalfOf(op);
    const size_t at = half * kBytes / 2 + op % kRoom * kMost;
    Fill(from_.data() + at, op, PieceBytes(op));
    half_of_[op % kRoom] = half;
    uint64_t position;
    RingSender& ring = link_.ll;
    CHECK(Within(100, [&] { return ring.Reserve(&position); }));
    const Half& keys = halves_[half];
    moved_.pair().send->direct.lock()->Attach(position, {from_.data() + at, keys.key, keys.to_key,
                                                         reinterpret_cast<uint64_t>(to_.data() + at), PieceBytes(op)});
    Fill(ring.payload(position), op, Bytes(Protocol::kLL, op));
    ring.Publish(position, {op, 1, 2, 3, 4}, {Bytes(Protocol::kLL, op), 77});
  }

  void Take(Protocol protocol) {
    const int index = Index(protocol);
    RecvLink& link = *moved_.pair().recv;
    for (uint64_t op = 0; !done_[index] || op < counts_[index]; ++op) {
      // The last message may be the one before: then none comes.
      if (!Within(100, [&] { return Has(link, protocol, op) || (done_[index] && op >= counts_[index]); })) {
        Fault("no message " + std::to_string(op), link.ring(protocol).memory(), op, link.end);
      }
      if (done_[index] && op >= counts_[index]) break;
      Receive(link, protocol, op, Bytes(protocol, op));
      if (protocol != Protocol::kLL) continue;
      char* const piece = to_.data() + half_of_[op % kRoom] * kBytes / 2 + op % kRoom * kMost;
      CheckPayload(link, link.ll.memory(), op, op, piece, PieceBytes(op));
      CHECK(std::all_of(piece + PieceBytes(op), piece + kMost, [](char c) { return c == 0; }));
      std::memset(piece, 0, kMost);
      read_ = op + 1;
    }
    // A message more would be one that has come twice.
    CHECK(!Has(link, protocol, counts_[index]));
  }

  static bool Has(RecvLink& link, Protocol protocol, uint64_t op) {
    const RingMemory& ring = link.ring(protocol).memory();
    for (uint32_t slot = 0; slot < ring.shape().slots; ++slot) {
      if (ring.header(slot).flag.load(std::memory_order_acquire) == op + 1) return true;
    }
    return false;
  }

  Moved& moved_;
  SendLink& link_;
  std::vector<char> from_, to_;
  std::array<Half, 2> halves_;
  std::array<std::atomic<size_t>, kRoom> half_of_{};
  std::atomic<uint64_t> read_{0};
  std::atomic<bool> stop_{false};
  std::array<std::atomic<bool>, 2> done_{};
  std::array<std::atomic<uint64_t>, 2> counts_{};
  std::vector<std::thread> threads_;
};

void Sleep(uint32_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void WaitUntilActive(int pair) {
  for (int end : {0, 1}) {
    const std::string state = "/sys/class/infiniband/" + Device(pair, end).device + "/ports/1/state";
    CHECK(Within(60, [&] { return verbs::ReadLine(state) == "4: ACTIVE"; }));
  }
}

// From one cable to the other under load, while both work.
void CheckMoves(uint32_t seed, int times) {
  std::mt19937 random(seed);
  Moved moved(seed);
  Traffic traffic(moved);
  while (moved.moves() < 4 * times) {
    Sleep(random() % 60);
    moved.Move(1 - moved.now());
  }
  std::cout << "  " << traffic.Stop() << " messages, " << moved.moves() << " moves" << std::endl;
}

// How a cable fails, by shell commands for one of its ends, and how it is mended.
struct Failure {
  const char* name;
  const char *begin, *end;
};
constexpr Failure kFailures[] = {
    {"down", "ip link set % down", "ip link set % up"},
    {"silent", "tc qdisc add dev % root netem loss 100%%", "tc qdisc delete dev % root"},
    // In the direction of the messages, since acknowledgements are short.
    {"throttled", "tc qdisc add dev % root netem rate 300kbit", "tc qdisc delete dev % root"},
    {"flapping",
     "for i in 1 2 3; do ip link set % down; sleep 0.2; ip link set % up; sleep 0.1; done; ip link set % down",
     "ip link set % up"},
};

std::string For(std::string command, const std::string& interface) {
  for (size_t at = 0; (at = command.find('%', at)) != std::string::npos;) {
    const bool percent = command.compare(at, 2, "%%") == 0;
    command.replace(at, percent ? 2 : 1, percent ? "%" : interface);
    at += percent ? 1 : interface.size();
  }
  return command;
}

// The cable that the link is on fails at any moment, at either end, in every way.
void CheckFailures(uint32_t seed, int times) {
  std::mt19937 random(seed);
  Moved moved(seed);
  std::thread healing([&] { moved.Heal(); });
  Traffic traffic(moved);
  for (int i = 0; i < times; ++i) {
    const Failure& failure = kFailures[i % std::size(kFailures)];
    const int pair = moved.now(), before = moved.moves();
    const bool throttled = failure.name == std::string("throttled");
    const std::string interface = Interface(pair, throttled ? 0 : static_cast<int>(random() % 2));
    Sleep(random() % 500);
    const auto begin = Clock::now();
    Shell(For(failure.begin, interface));
    if (!Within(60, [&] { return moved.moves() > before; })) Fail(__FILE__, __LINE__, failure.name);
    std::cout << "  " << failure.name << ", " << interface << ": "
              << std::chrono::duration<double>(Clock::now() - begin).count() << " s" << std::endl;
    Shell(For(failure.end, interface));
    WaitUntilActive(pair);
  }
  CHECK_EQ(moved.pair().engines[0]->paths().Count().first, 1);
  std::cout << "  " << traffic.Stop() << " messages, " << moved.moves() << " moves" << std::endl;
  moved.pair().engines[0]->paths().Close();
  healing.join();
}

// A cable that still brings a message every 0.2 s, far fewer than before, is left, too.
void CheckTrickle() {
  constexpr uint32_t kSlot = 64 * 1024;
  Moved moved(1, 60, kSlot);
  while (moved.moves() == 0) moved.Move(1);
  std::thread healing([&] { moved.Heal(); });
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> count{0};
  std::thread sending([&] {
    for (; !stop; ++count) Send(*moved.pair().send, Protocol::kSimple, count, kSlot);
  });
  uint64_t op = 0;
  const auto take = [&](auto done) {
    while (!done()) {
      if (op < count) Receive(*moved.pair().recv, Protocol::kSimple, op++, kSlot);
    }
  };
  const auto fast = Clock::now() + std::chrono::seconds(1);
  take([&] { return Clock::now() > fast; });
  Shell("tc qdisc add dev " + Interface(1, 0) + " root netem rate 3mbit");
  const auto late = Clock::now() + std::chrono::seconds(60);
  take([&] { return moved.moves() > 1 || Clock::now() > late; });
  Shell("tc qdisc delete dev " + Interface(1, 0) + " root");
  stop = true;
  std::thread rest([&] { take([&] { return stop && op == count; }); });
  sending.join();
  rest.join();
  moved.pair().engines[0]->paths().Close();
  healing.join();
  std::cout << "  " << count << " messages; it " << moved.whys() << std::endl;
  CHECK_EQ(moved.moves(), 2);
  CHECK(moved.whys().find("takes less than a twentieth") != std::string::npos);
}

// A write that the peer's device refuses ends the link: on other ports it would be refused, too.
void CheckRefused() {
  Moved moved(1);
  std::thread healing([&] { moved.Heal(); });
  std::vector<char> bytes(4096);
  const auto sender = moved.pair().send->direct.lock();
  const uint32_t key = sender->Register({bytes.data(), bytes.size()});
  const uint32_t to_key = moved.pair().recv->direct.lock()->Register({bytes.data(), 64});
  uint64_t position;
  CHECK(moved.pair().send->ll.Reserve(&position));
  sender->Attach(position, {bytes.data(), key, to_key, reinterpret_cast<uint64_t>(bytes.data()) + 64, 64});
  moved.pair().send->ll.Publish(position, {1, 1, 2, 3, 4}, {0, 77});
  CHECK(Within(60, [&] { return moved.pair().send->end.closed && moved.pair().recv->end.closed; }));
  CHECK(moved.pair().send->end.reason.find("(status ") != std::string::npos);
  moved.pair().engines[0]->paths().Close();
  healing.join();
}

// Where no port answers, the link ends, and says which ports were tried.
void CheckAllDown() {
  Moved moved(1, 3);
  std::thread healing([&] { moved.Heal(); });
  for (int pair : {0, 1}) Shell("ip link set " + Interface(pair, 1) + " down");
  Send(*moved.pair().send, Protocol::kLL, 1, 8);
  CHECK(Within(60, [&] { return moved.pair().send->end.closed && moved.pair().recv->end.closed; }));
  for (int pair : {0, 1}) {
    Shell("ip link set " + Interface(pair, 1) + " up");
    WaitUntilActive(pair);
  }
  const std::string& reason = moved.pair().send->end.reason;
  for (const std::string& part :
       {std::string("no path to its host has answered for 3 s"), Device(1, 0).device + " port 1"}) {
    if (reason.find(part) == std::string::npos) std::cerr << "no '" << part << "' in: " << reason << std::endl;
    CHECK(reason.find(part) != std::string::npos);
  }
  CHECK(moved.pair().recv->end.reason.starts_with("it gave up: "));
  moved.pair().engines[0]->paths().Close();
  healing.join();
}

}  // namespace
}  // namespace jaxring::test

// verbs_moves SEED TIMES
int main(int argc, char** argv) {
  using namespace jaxring::test;
  CHECK_EQ(argc, 3);
  const uint32_t seed = static_cast<uint32_t>(std::atoi(argv[1]));
  const int times = std::atoi(argv[2]);
  std::cout << "seed " << seed << std::endl;
  const std::vector<std::pair<std::string, std::function<void()>>> checks = {
      {"moves", [=] { CheckMoves(seed, times); }},
      {"failures", [=] { CheckFailures(seed, times); }},
      {"trickle", CheckTrickle},
      {"refused", CheckRefused},
      {"all down", CheckAllDown},
  };
  for (const auto& [name, check] : checks) {
    const auto begin = Clock::now();
    check();
    std::cout << name << ": " << std::chrono::duration<double>(Clock::now() - begin).count() << " s" << std::endl;
  }
}
