// RDMA links that go on over other ports: run in the guest of `make test-rdma`, with a device at each end of one cable
// in JAXRING_TEST_VERBS and of another one in JAXRING_TEST_VERBS_SPARE (see tests/rdma/guest/inside.sh). The traffic is
// the same as on one cable, beside bytes that are written past the slots, and none of it may be lost, doubled or
// damaged.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transport/rdma/moved.h"
#include "tests/transport/rdma/moved_traffic.h"

namespace jaxring::test {
namespace {

void Sleep(uint32_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

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
    const auto failed = Clock::now();
    if (!Within(60, [&] { return moved.moves() > before; })) Fail(__FILE__, __LINE__, failure.name);
    using Seconds = std::chrono::duration<double>;
    std::cout << "  " << failure.name << ", " << interface << ": moved " << Seconds(Clock::now() - failed).count()
              << " s after the commands, which took " << Seconds(failed - begin).count() << " s" << std::endl;
    Shell(For(failure.end, interface));
    WaitUntilActive(pair);
  }
  CHECK_EQ(moved.pair().engines[0]->network().paths().Count().first, 1);
  std::cout << "  " << traffic.Stop() << " messages, " << moved.moves() << " moves" << std::endl;
  moved.pair().engines[0]->network().paths().Close();
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
  moved.pair().engines[0]->network().paths().Close();
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
  moved.pair().engines[0]->network().paths().Close();
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
  CHECK(moved.pair().send->end.ending == Ending::kUnreachable);
  moved.pair().engines[0]->network().paths().Close();
  healing.join();
}

// A cable that fails while there is nothing to send is left, too.
void CheckIdle() {
  Moved moved(1);
  std::thread healing([&] { moved.Heal(); });
  Shell("tc qdisc add dev " + Interface(0, 1) + " root netem loss 100%");
  CHECK(Within(20, [&] { return moved.moves() > 0; }));
  Shell("tc qdisc delete dev " + Interface(0, 1) + " root");
  CHECK(!moved.pair().send->end.closed && !moved.pair().recv->end.closed);
  moved.pair().engines[0]->network().paths().Close();
  healing.join();
}

}  // namespace
}  // namespace jaxring::test

// verbs_moves SEED TIMES [CHECK]: all checks, or one. With seed 0 no attempt to move is given up on its way, so that
// the times are those of the failures alone.
int main(int argc, char** argv) {
  using namespace jaxring::test;
  CHECK(argc == 3 || argc == 4);
  const uint32_t seed = static_cast<uint32_t>(std::atoi(argv[1]));
  const int times = std::atoi(argv[2]);
  std::cout << "seed " << seed << std::endl;
  const std::vector<std::pair<std::string, std::function<void()>>> checks = {
      {"moves", [=] { CheckMoves(seed, times); }},
      {"failures", [=] { CheckFailures(seed, times); }},
      {"trickle", CheckTrickle},
      {"refused", CheckRefused},
      {"all down", CheckAllDown},
      {"idle", CheckIdle},
  };
  for (const auto& [name, check] : checks) {
    if (argc == 4 && name != argv[3]) continue;
    const auto begin = Clock::now();
    check();
    std::cout << name << ": " << std::chrono::duration<double>(Clock::now() - begin).count() << " s" << std::endl;
  }
}
