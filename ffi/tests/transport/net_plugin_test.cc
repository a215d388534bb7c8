// Network plugins: our small test plugin carries messages in every version of the ABI; broken plugins are refused.
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "transport/core/doorbell.h"
#include "transport/plugin/plugin_connector.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kSlot = 8192;
constexpr auto kLimit = std::chrono::seconds(60);

template <class Condition>
void Await(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (!condition()) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

struct Ended {
  std::atomic<bool> ended{false}, goodbye{false};
  OnEnd Callback() {
    return [this](const std::string&, Ending ending) {
      goodbye = ending == Ending::kGoodbye;
      ended = true;
    };
  }
};

// Both ends of a link from `sender` to `receiver`, in one process. The poller is destroyed first, as in an engine.
struct Pair {
  explicit Pair(int version) {
    for (PluginConnector* links : {&sender, &receiver}) {
      CHECK_EQ(links->LoadVersion(TEST_NET_PLUGIN, version),
               "Test TCP (ABI v" + std::to_string(version) + ", 2 device(s): tcp0 tcp1)");
    }
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    const auto from = sender.Offer({1, 3, true}, {}), to = receiver.Offer({0, 3, false}, {});
    from->Prepare(to->offer());
    to->Prepare(from->offer());
    std::thread accepting(
        [&] { there = to->Finish({&poller, Descriptor(fds[1]), 60, "", received.Callback(), nullptr}); });
    here = from->Finish({&poller, Descriptor(fds[0]), 60, "", sent.Callback(), nullptr});
    accepting.join();
  }

  std::unique_ptr<Doorbell> doorbell = Doorbell::Create();
  Ended sent, received;
  PluginConnector sender{{kSlot, doorbell.get(), nullptr, {}}}, receiver{{kSlot, doorbell.get(), nullptr, {}}};
  JoinedLink here, there;
  Poller poller{[] {}};
};

// Sends more messages than rings and buffers hold, by both protocols in turn and of many lengths.
void Carries(int version) {
  Pair pair(version);
  constexpr int kMessages = 200;
  auto bytes = [](int i) {
    return static_cast<uint32_t>(i % 2 ? i * 7919 % (LLShape().payload_bytes + 1) : kSlot - i);
  };
  std::thread writer([&] {
    for (int i = 0; i < kMessages; ++i) {
      RingSender& ring = pair.here.send->ring(i % 2 ? Protocol::kLL : Protocol::kSimple);
      uint64_t position = 0;
      Await([&] { return ring.Reserve(&position); });
      std::memset(ring.payload(position), i, bytes(i));
      ring.Publish(position, {static_cast<uint64_t>(i), 0, 1, 0, 0}, {bytes(i), 77});
    }
  });
  for (int i = 0; i < kMessages; ++i) {
    RingReceiver& ring = pair.there.recv->ring(i % 2 ? Protocol::kLL : Protocol::kSimple);
    uint64_t position = 0;
    const char* data = nullptr;
    Message message;
    Await([&] { return ring.Find({static_cast<uint64_t>(i), 0, 1, 0, 0}, &position, &data, &message); });
    CHECK_EQ(message.bytes, bytes(i));
    CHECK_EQ(message.check, 77u);
    for (uint32_t k = 0; k < message.bytes; ++k) CHECK(data[k] == static_cast<char>(i));
    ring.Release(position);
  }
  writer.join();
  // After an orderly end the receiver first gets every message that was published before it.
  uint64_t position = 0;
  CHECK(pair.here.send->simple.Reserve(&position));
  pair.here.send->simple.Publish(position, {9999, 0, 1, 0, 0}, {kSlot, 77});
  pair.here.say_goodbye();
  Await([&] { return pair.received.ended.load(); });
  CHECK(pair.received.goodbye);
  const char* data = nullptr;
  Message message;
  CHECK(pair.there.recv->simple.Find({9999, 0, 1, 0, 0}, &position, &data, &message));
  // The sender also notices that the receiver has closed its end without a goodbye.
  Await([&] { return pair.sent.ended.load(); });
  CHECK(!pair.sent.goodbye);
  CHECK(pair.here.send->end.closed);
}

template <class Function>
void Says(Function function, const std::string& part) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()).find(part) != std::string::npos) return;
    std::cerr << "the error is: " << error.what() << std::endl;
  }
  std::cerr << "expected: " << part << std::endl;
  CHECK(false);
}

CASE("plugins that are refused") {
  for (const auto& [broken, why] : std::vector<std::pair<std::string, std::string>>{
           {"host", "ABI v12 is broken: device 0 does not take host memory"},
           {"devices", "ABI v12 is broken: it counts -7 devices"}}) {
    setenv("TEST_PLUGIN_BREAK", broken.c_str(), 1);
    Says([] { NetPlugin::Load(TEST_NET_PLUGIN); }, why);
  }
  unsetenv("TEST_PLUGIN_BREAK");
  Says([] { NetPlugin::Load("/nowhere/at/all.so"); }, "cannot be loaded: /nowhere/at/all.so");
  Says([] { NetPlugin::Load("libm.so.6"); }, "exports none of ncclNetPlugin_v6 to ncclNetPlugin_v12");
  auto doorbell = Doorbell::Create();
  PluginConnector links({kSlot, doorbell.get(), nullptr, {}});
  Says([&] { links.Offer({0, 0, true}, {}); }, "no network plugin is loaded");
  links.Load(TEST_NET_PLUGIN);
  const auto link = links.Offer({0, 0, true}, {});
  Says([&] { link->Prepare("00 Another"); }, "the network plugins differ: Test TCP here, Another there");
  Says([&] { link->Prepare("00 Test TCP"); }, "address cannot be read");
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

CASE("a connection whose buffers cannot be registered is closed again") {
  const size_t before = OpenDescriptors();
  {
    Poller poller([] {});
    auto doorbell = Doorbell::Create();
    PluginConnector sender({kSlot, doorbell.get(), nullptr, {}}), receiver({kSlot, doorbell.get(), nullptr, {}});
    for (PluginConnector* links : {&sender, &receiver}) links->Load(TEST_NET_PLUGIN);
    setenv("TEST_PLUGIN_BREAK", "register", 1);
    for (int i = 0; i < 3; ++i) {
      int fds[2];
      CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
      const auto from = sender.Offer({1, i, true}, {}), to = receiver.Offer({0, i, false}, {});
      from->Prepare(to->offer());
      to->Prepare(from->offer());
      const auto fails = [&](OfferedLink& link, int fd) {
        Says([&] { link.Finish({&poller, Descriptor(fd), 60, "", nullptr, nullptr}); }, "regMr");
      };
      std::thread accepting([&] { fails(*to, fds[1]); });
      fails(*from, fds[0]);
      accepting.join();
    }
    unsetenv("TEST_PLUGIN_BREAK");
  }
  CHECK_EQ(OpenDescriptors(), before);
}

CASE("each version of the interface carries messages") {
  for (int version = NetPlugin::kOldest; version <= NetPlugin::kNewest; ++version) Carries(version);
}

}  // namespace
}  // namespace jaxring::test
