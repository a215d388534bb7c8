// What a control connection says of its end: the first error of a write is the cause, whatever later writes say.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "network/paths.h"
#include "network/peers/control.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

// A socket whose first write fails with `first`, as the kernel reports an error once, and all others with EPIPE.
class FailingStream final : public Stream {
 public:
  FailingStream(int fd, int first) : Stream(fd), first_(first) {}
  ssize_t Write(const iovec* /*parts*/, int /*count*/) override {
    errno = std::exchange(first_, EPIPE);
    return -1;
  }
  using Stream::Write;
  ssize_t Read(void* /*to*/, size_t /*bytes*/) override { return 0; }

 private:
  int first_;
};

std::pair<std::string, Ending> EndAfter(int first, int frames) {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  close(ends[1]);  // so that the poller has the link read
  std::promise<std::pair<std::string, Ending>> ended;
  Poller poller([] {});
  auto link = std::make_shared<ControlLink>(
      std::make_unique<FailingStream>(ends[0], first), 3.0, &poller, [](const ControlFrame&) {},
      [&](const std::string& why, Ending ending) { ended.set_value({why, ending}); });
  for (int i = 0; i < frames; ++i) link->Send("a frame", false);
  poller.Add(link->fd(), EPOLLIN | EPOLLRDHUP | EPOLLOUT, link);
  auto found = ended.get_future();
  CHECK(found.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  return found.get();
}

CASE("a host that acknowledges nothing is named also where a second frame was sent") {
  for (int frames : {1, 2, 5}) {
    const auto [why, ending] = EndAfter(ETIMEDOUT, frames);
    CHECK(ending == Ending::kUnreachable);
    CHECK(why.find("its host has acknowledged nothing for 3 s") != std::string::npos);
  }
}

CASE("a connection that this process has given up ends for the reason that it gave") {
  for (const Ending given : {Ending::kUnreachable, Ending::kNoGoodbye}) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    const Stream other(ends[1]);
    std::promise<std::pair<std::string, Ending>> ended;
    Paths paths(3.0);
    Poller poller([] {});
    auto link = std::make_shared<ControlLink>(
        paths.Add(std::make_unique<Stream>(ends[0]), {"a", true}, &poller), 3.0, &poller, [](const ControlFrame&) {},
        [&](const std::string& why, Ending ending) { ended.set_value({why, ending}); });
    poller.Add(link->fd(), EPOLLIN | EPOLLRDHUP, link);
    paths.Fail({"a", true}, "it does not listen any more", given);
    auto found = ended.get_future();
    CHECK(found.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    const auto [why, ending] = found.get();
    CHECK_EQ(why, "it does not listen any more");
    CHECK(ending == given);
    poller.Clear();
  }
}

CASE("a process that ended is not taken for an unreachable host") {
  const auto [why, ending] = EndAfter(EPIPE, 2);
  CHECK(ending == Ending::kNoGoodbye);
  CHECK_EQ(why, "its process ended");
}

}  // namespace
}  // namespace jaxring::test
