// The verbs transport on real verbs devices: run in the guest of `make test-rdma`, with JAXRING_TEST_VERBS naming a
// device at each end of a cable (see tests/rdma/guest/inside.sh). Names of checks to run may be given.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transport/rdma/traffic.h"

namespace jaxring::test {
namespace {

using verbs::Endpoint;
using verbs::EndpointOptions;

EndpointOptions Device(int end) { return VerbsDevices().at(end); }
bool Iwarp() { return !Device(0).address.empty(); }

// The interface of the device at that end of the cable.
std::string Interface(int end) { return (Iwarp() ? "jxs" : "jxr") + std::to_string(end); }

// The error of making an endpoint, or "" if there is none.
std::string Refusal(EndpointOptions options, const std::function<void(Endpoint&)>& then = nullptr,
                    Endpoint::Role role = Endpoint::Role::kSender) {
  LinkMemory memory = LinkMemory::Anonymous(128 * 1024);
  try {
    Endpoint end(std::move(options), role, memory.data(), memory.bytes());
    if (then) then(end);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

void Says(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (text.find(part) == std::string::npos) {
      std::cerr << "no '" << part << "' in: " << text << std::endl;
      Fail(__FILE__, __LINE__, "an error says what it should");
    }
  }
}

// Sends messages of all sizes through both rings at once, several times around. They are received in order and, in
// every other round, from the newest to the oldest.
void CheckFlow(int times) {
  Pair pair(64 * 1024);
  std::vector<std::thread> threads;
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
    const RingShape shape = pair.send->ring(protocol).memory().shape();
    const uint32_t payload = shape.payload_bytes, slots = shape.slots;
    auto size = [=](uint64_t i) { return i % 7 == 0 ? payload : static_cast<uint32_t>(i * 997 % (payload + 1)); };
    const uint64_t count = uint64_t{slots} * times;
    threads.emplace_back([=, &pair] {
      for (uint64_t i = 0; i < count; ++i) Send(*pair.send, protocol, i, size(i));
    });
    threads.emplace_back([=, &pair] {
      for (uint64_t round = 0; round < count / slots; ++round) {
        for (uint64_t i = 0; i < slots; ++i) {
          const uint64_t op = round * slots + (round % 2 == 0 ? i : slots - 1 - i);
          Receive(*pair.recv, protocol, op, size(op));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(!pair.send->end.closed && !pair.recv->end.closed);
}

// The last message of an operation waits for a credit when the operation has ended here and its thread no longer polls.
// It must still be sent when the credit arrives.
void CheckHeld() {
  // Whether the pump has disabled its events before the credit arrives depends on timing, hence several tries.
  for (int time = 0; time < 10; ++time) {
    Pair pair;
    BusyPollers& busy_pollers = pair.engines[0]->network().busy_pollers();
    RingSender& sender = pair.send->ring(Protocol::kSimple);
    const uint64_t count = sender.memory().shape().slots + 1;
    busy_pollers.Begin();
    for (uint64_t op = 0; op < count; ++op) {
      uint64_t position;
      CHECK(Within(60, [&] { return sender.Reserve(&position) || (pair.send->notifier->Poll(), false); }));
      Fill(sender.payload(position), op, 1);
      sender.Publish(position, {op, 1, 2, 3, 4}, {1, 77});
    }
    busy_pollers.End(false);
    for (uint64_t op = 0; op < count; ++op) Receive(*pair.recv, Protocol::kSimple, op, 1);
  }
}

// Bytes that are written directly, and not by the slots, are in place when the message that goes with them is found,
// whatever is sent before and after it, and the memory around them is unchanged.
void CheckDirect() {
  Pair pair;
  constexpr uint64_t kPieces = 200, kRoom = 8, kMost = 40'000, kGuard = 64;
  std::vector<char> from(kPieces * kMost), to(kRoom * (kMost + kGuard));
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 2654435761u >> 13);
  const auto sender = pair.send->direct.lock();
  const auto receiver = pair.recv->direct.lock();
  CHECK(sender != nullptr && receiver != nullptr);
  CHECK(sender->device() == Device(0).device && receiver->device() == Device(1).device);
  const uint32_t key = sender->Register({from.data(), from.size()});
  const uint32_t to_key = receiver->Register({to.data(), to.size()});
  const auto size = [](uint64_t i) { return i % 11 == 0 ? 0 : static_cast<uint32_t>(i * 7919 % (kMost + 1)); };
  std::atomic<uint64_t> read{0};
  std::thread sending([&] {
    for (uint64_t i = 0; i < kPieces; ++i) {
      CHECK(Within(60, [&] { return read + kRoom > i; }));
      uint64_t position;
      CHECK(Within(60, [&] { return pair.send->ll.Reserve(&position); }));
      const auto place = reinterpret_cast<uint64_t>(to.data()) + i % kRoom * (kMost + kGuard);
      sender->Attach(position, {from.data() + i * kMost, key, to_key, place, size(i)});
      pair.send->ll.Publish(position, {2 * i, 1, 2, 3, 4}, {0, 77});
      Send(*pair.send, i % 3 == 0 ? Protocol::kSimple : Protocol::kLL, 2 * i + 1, 100);
    }
  });
  for (uint64_t i = 0; i < kPieces; ++i) {
    char* place = to.data() + i % kRoom * (kMost + kGuard);
    Receive(*pair.recv, Protocol::kLL, 2 * i, 0);
    CHECK(std::memcmp(place, from.data() + i * kMost, size(i)) == 0);
    CHECK(std::all_of(place + kMost, place + kMost + kGuard, [](char c) { return c == 0; }));
    std::memset(place, 0, kMost);
    Receive(*pair.recv, i % 3 == 0 ? Protocol::kSimple : Protocol::kLL, 2 * i + 1, 100);
    read = i + 1;
  }
  sending.join();
  // A descriptor that is not a dma-buf is refused with a message that says so.
  const int file = memfd_create("no dma-buf", MFD_CLOEXEC);
  try {
    sender->Register({from.data(), 4096, file});
    CHECK(false);
  } catch (const std::runtime_error& error) {
    Says(error.what(), {Device(0).device.c_str(), "registering 4 KiB of memory as a dma-buf"});
  }
  close(file);
  CHECK(!pair.send->end.closed && !pair.recv->end.closed);
  // A write to memory that was not offered ends the connection, and no byte is written.
  uint64_t position;
  CHECK(pair.send->ll.Reserve(&position));
  sender->Attach(position, {from.data(), key, to_key, reinterpret_cast<uint64_t>(to.data()) + to.size(), 64});
  pair.send->ll.Publish(position, {1, 1, 2, 3, 4}, {0, 77});
  CHECK(Within(60, [&] { return pair.send->end.closed && pair.recv->end.closed; }));
}

// On a cable that drops packets they are sent again: every message arrives, and arrives once.
void CheckLoss() {
  Shell("tc qdisc add dev " + Interface(0) + " root netem loss 2%");
  CheckFlow(10);
  Shell("tc qdisc delete dev " + Interface(0) + " root");
}

// When the cable is pulled, both ends report it and name device, GID and queue pair.
void CheckLinkDown() {
  Pair pair;
  Send(*pair.send, Protocol::kLL, 1, 8);
  Receive(*pair.recv, Protocol::kLL, 1, 8);
  Shell("ip link set " + Interface(1) + " down");
  Send(*pair.send, Protocol::kLL, 2, 8);
  CHECK(Within(60, [&] { return pair.send->end.closed && pair.recv->end.closed; }));
  Shell("ip link set " + Interface(1) + " up");
  const std::string name = Device(0).device;
  Says(pair.send->end.reason, {name.c_str(), "port 1", "queue pair ", "the port is down"});
  if (!Iwarp()) Says(pair.send->end.reason, {"GID 1 ::ffff:10.77.0.1, RoCE v2"});
  Says(pair.recv->end.reason, {"it gave up: ", name.c_str(), "queue pair "});
  CHECK(pair.engines[0]->network().peers().Crashed(1) && pair.engines[1]->network().peers().Crashed(0));
  CHECK(Within(60, [] {
    const std::string active = "rdma link show | grep -q '" + Device(1).device + "/1 state ACTIVE'";
    return std::system(active.c_str()) == 0;
  }));
}

// When the peer ends in good order, or after an error between operations, everything that it sent before is there when
// it goes, and the link does not count as broken.
void CheckGoodbye(bool in_good_order) {
  Pair pair;
  constexpr uint64_t kCount = 30;
  for (uint64_t i = 0; i < kCount; ++i) Send(*pair.send, Protocol::kLL, i, i % 2 == 0 ? 100 : 4096);
  pair.engines[0]->Abort("the test ends", 1, in_good_order);
  CHECK(pair.recv->end.complete);
  pair.engines[0].reset();
  close(std::exchange(pair.cut, -1));  // the other copy of the connection that ends with the process
  for (uint64_t i = 0; i < kCount; ++i) Receive(*pair.recv, Protocol::kLL, i, i % 2 == 0 ? 100 : 4096);
  CHECK(Within(60, [&] { return pair.recv->end.closed.load(); }));
  Says(pair.recv->end.reason, {"its process ended"});
  CHECK(!pair.engines[1]->network().peers().Crashed(0));
}

void CheckGoodbyes() {
  CheckGoodbye(true);
  CheckGoodbye(false);
}

// On a cable with a long delay some devices report a write as complete while it is still in flight, and the sender then
// fills the slots again.
void CheckDelay() {
  Shell("tc qdisc add dev " + Interface(0) + " root netem delay 5ms");
  CheckFlow(5);
  Shell("tc qdisc delete dev " + Interface(0) + " root");
  // The goodbye goes by another connection, which is not delayed: it must not end the link before its messages.
  Shell("tc qdisc add dev " + Interface(0) + " root netem delay 50ms");
  CheckGoodbyes();
  Shell("tc qdisc delete dev " + Interface(0) + " root");
}

void CheckRefusals() {
  EndpointOptions options = Device(0);
  options.device = "nothing0";
  Says(Refusal(options), {"nothing0"});
  auto peer_with = [](auto change) {
    return Refusal(Device(0), [&](Endpoint& end) {
      verbs::Offer offer = end.offer();
      change(offer);
      end.Prepare(verbs::FromHex(verbs::ToHex(offer)));
    });
  };
  Says(peer_with([](verbs::Offer& o) { o.layer = verbs::Layer::kInfiniband; }), {"the peer's InfiniBand", "IB_HCA"});
  Says(peer_with([](verbs::Offer& o) { o.queue_pairs = 3; }), {"JAXRING_IB_QPS_PER_CONNECTION"});
  Says(peer_with([](verbs::Offer& o) { o.bytes = 1; }), {"JAXRING_BUFFSIZE"});
  Says(peer_with([](verbs::Offer& o) { o.version = 99; }), {"the same version"});
  if (Iwarp()) {
    options = Device(0);
    options.address = "10.78.0.99";
    Says(Refusal(options), {"10.78.0.99", "binding failed"});
    return;
  }
  options = Device(0);
  options.gid_index = 77;
  Says(Refusal(options), {"has no GID 77", "JAXRING_IB_GID_INDEX"});
  Says(peer_with([](verbs::Offer& o) { std::strcpy(o.gid_type, "IB/RoCE v1"); }), {"RoCE v1", "JAXRING_IB_GID_INDEX"});
  Says(peer_with([](verbs::Offer& o) {
         o.gid.raw[15] = 99;
         o.gid.raw[13] = 99;
       }),
       {"GID ::ffff:10.99.0.99", "route"});
}

// The device is there, but its cable is not connected.
void CheckDownFromTheStart() {
  Shell("ip link set " + Interface(0) + " down");
  const std::string said = Refusal(Device(0));
  Shell("ip link set " + Interface(0) + " up");
  Says(said, {"port is not active"});
}

// The error for a user who may lock little memory says how to raise the limit.
void CheckMemlock() {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    rlimit little{64 * 1024, 64 * 1024};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &little) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    Says(Refusal(Device(0)), {"registering", "may lock 64 KiB", "ulimit -l", "IPC_LOCK"});
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

}  // namespace
}  // namespace jaxring::test

int main(int argc, char** argv) {
  using namespace jaxring::test;
  CHECK_EQ(VerbsDevices().size(), 2u);
  const std::vector<std::pair<std::string, std::function<void()>>> checks = {
      {"memlock", CheckMemlock},    {"refusals", CheckRefusals}, {"flow", [] { CheckFlow(10); }},
      {"held", CheckHeld},          {"direct", CheckDirect},     {"goodbye", CheckGoodbyes},
      {"delay", CheckDelay},        {"loss", CheckLoss},         {"down from the start", CheckDownFromTheStart},
      {"link down", CheckLinkDown},
  };
  for (const auto& [name, check] : checks) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= name == argv[i];
    if (!wanted) continue;
    const auto begin = Clock::now();
    check();
    std::cout << name << ": " << std::chrono::duration<double>(Clock::now() - begin).count() << " s" << std::endl;
  }
}
