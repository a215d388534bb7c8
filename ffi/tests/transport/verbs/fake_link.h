// A link by RDMA between two ends in this process, on the devices of fake_ibverbs.cc, and the steps by which it goes on
// over others.
#pragma once

#include <dlfcn.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/check.h"
#include "tests/transport/verbs/fake_ibverbs.h"
#include "transport/core/doorbell.h"
#include "transport/verbs/verbs_connector.h"

namespace jaxring::test {

inline FakeVerbs& Fake() {
  static FakeVerbs* const fake = [] {
    // It has the name by which the product asks for the library, which is then this one.
    void* library = dlopen(TEST_IBVERBS, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) Fail(__FILE__, __LINE__, dlerror());
    return reinterpret_cast<FakeVerbs* (*)()>(dlsym(library, "fake_verbs"))();
  }();
  return *fake;
}

inline MovableLink::Place Place(int device) {
  return {{"device", "fake" + std::to_string(device)}, {"gid_index", "0"}};
}

template <class Condition>
void Await(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    CHECK(std::chrono::steady_clock::now() < until);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Returns one end of a connection.
inline int Socket(int* other) {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  *other = fds[1];
  return fds[0];
}

// A link on device 0. Nobody looks at it regularly, as an engine would. The poller is destroyed first, as in an engine.
struct FakeLink {
  FakeLink() {
    Fake();
    const auto from = connector.Offer({1, 0, true}, Place(0)), to = connector.Offer({0, 0, false}, Place(0));
    from->Prepare(to->offer());
    to->Prepare(from->offer());
    int there;
    const int here = Socket(&there);
    const auto agreed = [this](int fd, OnEnd on_end) {
      return Agreed{&poller, Descriptor(fd), 60, "", std::move(on_end), nullptr};
    };
    sender = from->Finish(agreed(here, [this](const std::string&, Ending how) { ending = how; }));
    receiver = to->Finish(agreed(there, [](const std::string&, Ending) {}));
    sender.movable->SetMovable();
    receiver.movable->SetMovable();
  }
  ~FakeLink() { Fake().silent[0] = Fake().silent[1] = Fake().no_memory[0] = Fake().no_memory[1] = false; }

  MovableLink& from() { return *sender.movable; }
  MovableLink& to() { return *receiver.movable; }
  const LinkEnd& from_end() { return sender.send->end; }
  const LinkEnd& to_end() { return receiver.recv->end; }

  // An attempt, up to Try.
  void Begin(uint64_t attempt, int device = 1) {
    const std::string offer = from().Offer(attempt, Place(device)), theirs = to().Offer(attempt, Place(device));
    to().Prepare(attempt, offer);
    from().Prepare(attempt, theirs);
  }
  // The receiving end goes on. Returns what it has received; `fd` gets the sender's new control connection.
  std::string SwitchReceiver(uint64_t attempt, int* fd) {
    std::string received = to().Switch(attempt, "");
    to().TakeOver(attempt, Socket(fd));
    return received;
  }
  // The whole of an attempt.
  void Move(uint64_t attempt, int device) {
    Begin(attempt, device);
    from().Try(attempt, 60);
    int fd = -1;
    const std::string received = SwitchReceiver(attempt, &fd);
    from().Switch(attempt, received);
    from().TakeOver(attempt, fd);
  }
  void Register() {
    static char bytes[64];
    CHECK(sender.send->direct.lock()->Register({bytes, sizeof bytes}) != 0);
  }
  void Send(uint64_t op) {
    uint64_t position;
    CHECK(sender.send->ll.Reserve(&position));
    sender.send->ll.Publish(position, {op, 0, 1, 0, 0}, {0, 77});
  }
  void Carry(uint64_t op) {
    Send(op);
    uint64_t position;
    const char* data;
    Message message;
    Await([&] { return receiver.recv->ll.Find({op, 0, 1, 0, 0}, &position, &data, &message); });
    receiver.recv->ll.Release(position);
  }

  std::unique_ptr<Doorbell> doorbell = Doorbell::Create();
  BusyPollers busy_pollers;
  std::atomic<Ending> ending{Ending::kGoodbye};
  VerbsConnector connector{{4096, doorbell.get(), &busy_pollers, {}}};
  JoinedLink sender, receiver;
  Poller poller{[] {}};
};

}  // namespace jaxring::test
