// A connection whose end a writer finds before the poller's thread does.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tests/support/cases.h"
#include "transport/tcp/tcp.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kSlot = 4096;

class SilentNotifier final : public Notifier {
 public:
  void Notify() override {}
};

CASE("the poller's thread does not go on watching it") {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  std::atomic<bool> hold{true}, held{false};
  Poller poller([&] {
    held = true;
    while (hold) std::this_thread::yield();
  });
  SilentNotifier notifier;
  // The handler owns it, and epoll watches a descriptor for as long as it has a handler.
  auto alive = std::make_shared<int>();
  const std::weak_ptr<int> watched = alive;
  std::atomic<bool> ended{false};
  const auto link = MakeTcpSendLink(std::make_unique<Stream>(ends[0]), &poller, LinkMemory::Anonymous(kSlot), &notifier,
                                    [&ended, alive = std::move(alive)](const std::string&, Ending) { ended = true; });
  while (!held) std::this_thread::yield();
  close(ends[1]);
  RingSender& ring = link->ring(Protocol::kLL);
  uint64_t position;
  CHECK(ring.Reserve(&position));
  ring.Publish(position, {1, 0, 1, 0, 0}, {0, 0, 0});
  CHECK(ended);
  CHECK(!watched.expired());
  hold = false;
  while (!watched.expired()) std::this_thread::yield();
  poller.Clear();
}

}  // namespace
}  // namespace jaxring::test
