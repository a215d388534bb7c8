// RDMA links that one process cannot put into service when both ends are finished. On a libibverbs without devices.
#include <sys/socket.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "engine/process_engine.h"
#include "tests/support/cases.h"
#include "tests/transport/verbs/fake_link.h"

namespace jaxring::test {
namespace {

std::unique_ptr<ProcessEngine> NewEngine() { return std::make_unique<ProcessEngine>(EngineOptions{1, 4096, 0}); }

// Links process `from` to process 0. Returns what process 0 refuses its end for, or "".
std::string Connect(ProcessEngine& sender, ProcessEngine& receiver, int from, const std::string& path) {
  std::array<int, 2> fds;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
  Connectors &here = sender.network().connectors(), &there = receiver.network().connectors();
  const LinkName sends{0, 0, true}, receives{from, 0, false};
  const std::string ours = here.Offer("verbs", sends, Place(0)), theirs = there.Offer("verbs", receives, Place(0));
  there.Prepare(receives, ours);
  here.Prepare(sends, theirs);
  std::string why;
  std::thread answering([&] {
    try {
      receiver.network().AddLink(receives, Descriptor(fds[1]), 30, "", path);
    } catch (const std::invalid_argument& error) {
      why = error.what();
    }
  });
  sender.network().AddLink(sends, Descriptor(fds[0]), 30, "", path);
  answering.join();
  return why;
}

CASE("a link that the peer cannot put into service ends, and the one that has its name does not") {
  Fake();
  const auto receiver = NewEngine(), first = NewEngine(), second = NewEngine();
  CHECK_EQ(Connect(*first, *receiver, 1, "a"), std::string());
  CHECK_EQ(Connect(*second, *receiver, 2, "a"), std::string("there is a connection of that name already"));
  CHECK(receiver->network().links().Recv(2, 0) == nullptr);
  const auto link = second->network().links().Send(0, 0);
  Await([&] { return link->end.closed.load(); });
  CHECK(!first->network().links().Send(0, 0)->end.closed);
  CHECK(!receiver->network().links().Recv(1, 0)->end.closed);
}

}  // namespace
}  // namespace jaxring::test
