// RDMA links that go on over other ports, step by step: what either end does where the other one, or a device, gives up
// on the way, and when a link counts as failed. On a libibverbs without devices, at times that the test says;
// `verbs_moves` has the same with traffic, on devices of a kernel.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "network/paths.h"
#include "tests/support/cases.h"
#include "tests/transport/verbs/fake_link.h"

namespace jaxring::test {
namespace {

using std::chrono::milliseconds, std::chrono::seconds, std::chrono::steady_clock;

constexpr auto kSilent = milliseconds(300);

template <class Error, class Function>
std::string Thrown(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  Fail(__FILE__, __LINE__, "it throws");
}

bool Lost(const MovableLink& link) { return link.suspended_at() != MovableLink::Time{}; }

void ExpectReason(const LinkEnd& end, const std::string& part) {
  Await([&] { return end.closed.load(); });
  if (end.reason.find(part) == std::string::npos) Fail(__FILE__, __LINE__, end.reason.c_str());
}

CASE("a link goes on over other ports with what the old ones did not deliver") {
  FakeLink link;
  link.Carry(0);
  Fake().silent[0] = true;
  link.Send(1);
  link.Begin(1);
  link.from().Try(1, 60);
  int fd = -1;
  const std::string received = link.SwitchReceiver(1, &fd);
  link.from().Switch(1, received);
  link.from().TakeOver(1, fd);
  uint64_t position;
  const char* data;
  Message message;
  Await([&] { return link.receiver.recv->ll.Find({1, 0, 1, 0, 0}, &position, &data, &message); });
  link.receiver.recv->ll.Release(position);
  link.Carry(2);
}

// Has a device hold the next queue pair that it is to destroy. Outlives the links, which destroy their own.
class Held {
 public:
  ~Held() { Fake().on_destroy = nullptr; }
  void Next() {
    Fake().on_destroy = [this] {
      if (begun.exchange(true)) return;
      late = release_.get_future().wait_for(seconds(60)) != std::future_status::ready;
    };
  }
  // To be called while one is held; what was done since did not wait for it.
  void LetGo() {
    let_go = true;
    release_.set_value();
    CHECK(begun && !late);
  }

  std::atomic<bool> begun{false}, late{false}, let_go{false};

 private:
  std::promise<void> release_;
};

CASE("a link carries messages and moves again while a device destroys its old queue pairs") {
  Held held;
  FakeLink link;
  Paths paths(60);
  const Paths::End end{"a", true};
  paths.Add(link.sender.movable, end);
  link.Begin(1);
  link.from().Try(1, 60);
  int fd = -1;
  const std::string received = link.SwitchReceiver(1, &fd);
  held.Next();
  link.from().Switch(1, received);
  link.from().TakeOver(1, fd);
  paths.Switched(end, true);
  Await([&] { return held.begun.load(); });
  link.Carry(0);
  Fake().fail_newest();  // the receiver's one of device 1
  Await([&] {
    paths.Check(steady_clock::now());
    return paths.IsLost(end);
  });
  link.Move(2, 0);
  paths.Switched(end, false);
  link.Carry(1);
  held.LetGo();
}

CASE("a link moves while a device destroys the queue pairs of an attempt that has failed") {
  Held held;
  FakeLink link;
  Fake().silent[1] = true;
  link.Begin(1);
  held.Next();
  CHECK(Thrown<std::runtime_error>([&] { link.from().Try(1, 0); }).ends_with("the peer's port does not answer"));
  Await([&] { return held.begun.load(); });
  Fake().silent[1] = false;
  link.Move(2, 1);
  link.Carry(0);
  held.LetGo();
}

CASE("an attempt waits while the queue pairs of many others are to be destroyed") {
  Held held;
  FakeLink link;
  held.Next();
  for (uint64_t attempt = 1; attempt <= 4; ++attempt) {
    link.from().Offer(attempt, Place(1));
    Thrown<std::runtime_error>([&] { link.from().Prepare(attempt, "nonsense"); });
  }
  Await([&] { return held.begun.load(); });
  auto next = std::async(std::launch::async, [&] {
    link.from().Offer(5, Place(1));
    return held.let_go.load();
  });
  next.wait_for(milliseconds(100));  // where it does not wait it has returned
  held.LetGo();
  CHECK(next.get());
}

CASE("memory is registered while the queue pairs of an attempt that fails are destroyed") {
  const std::vector<std::function<void(FakeLink&)>> failures{
      [](FakeLink& link) { Thrown<std::runtime_error>([&] { link.from().Prepare(1, "nonsense"); }); },
      [](FakeLink& link) {
        Fake().silent[1] = true;
        link.from().Prepare(1, link.to().Offer(1, Place(1)));
        Thrown<std::runtime_error>([&] { link.from().Try(1, 0); });
      },
      [](FakeLink& link) { link.from().Offer(2, Place(1)); },
  };
  for (const auto& fails : failures) {
    Held held;
    FakeLink link;
    link.from().Offer(1, Place(1));
    held.Next();
    fails(link);
    Await([&] { return held.begun.load(); });
    link.Register();
    held.LetGo();
  }
}

CASE("memory is registered while an attempt waits for the peer's port") {
  FakeLink link;
  Fake().silent[1] = true;
  link.Begin(1);
  const int before = Fake().posted;
  auto tried = std::async(std::launch::async, [&] { link.from().Try(1, 60); });
  Await([&] { return Fake().posted > before; });
  link.Register();
  link.from().Offer(2, Place(1));
  CHECK_EQ(Thrown<std::invalid_argument>([&] { tried.get(); }),
           std::string("another attempt to go on over other ports has begun"));
}

CASE("an answer of the new ports at the last moment counts") {
  FakeLink link;
  link.Begin(1);
  link.from().Try(1, 0);
  int fd = -1;
  const std::string received = link.SwitchReceiver(1, &fd);
  link.from().Switch(1, received);
  link.from().TakeOver(1, fd);
  link.Carry(0);
}

CASE("new ports that do not answer are dropped, and the old ones carry on") {
  FakeLink link;
  Fake().silent[1] = true;
  link.Begin(1);
  CHECK(Thrown<std::runtime_error>([&] { link.from().Try(1, 0); }).ends_with("the peer's port does not answer"));
  CHECK_EQ(Thrown<std::invalid_argument>([&] { link.from().Switch(1, ""); }),
           std::string("this attempt to go on over other ports has failed"));
  int other = -1;
  Thrown<std::invalid_argument>([&] { link.from().TakeOver(1, Socket(&other)); });
  close(other);
  link.Carry(0);
}

CASE("the sender learns why the receiver has given up while a move is under way") {
  FakeLink link;
  link.Begin(1);
  link.from().Try(1, 60);
  link.to().Fail("of its own", Ending::kNoGoodbye);
  ExpectReason(link.from_end(), "of its own");
  CHECK(link.from_end().reason.starts_with("it gave up: "));
}

CASE("a receiver that has switched learns why the sender has given up") {
  FakeLink link;
  link.Begin(1);
  link.from().Try(1, 60);
  link.to().Switch(1, "");
  link.from().Fail("of its own", Ending::kUnreachable);
  ExpectReason(link.to_end(), "of its own");
  CHECK(link.to_end().reason.starts_with("it gave up: "));
}

CASE("a sender that cannot go on says why on the new connection") {
  FakeLink link;
  link.Begin(1);
  link.from().Try(1, 60);
  int fd = -1;
  link.SwitchReceiver(1, &fd);
  Thrown<std::runtime_error>([&] { link.from().Switch(1, "nonsense"); });
  Thrown<std::invalid_argument>([&] { link.from().TakeOver(1, fd); });
  ExpectReason(link.to_end(), "has received other messages than were sent");
}

CASE("a sender that has ended before it goes on says why on the new connection") {
  FakeLink link;
  link.Begin(1);
  link.from().Try(1, 60);
  int fd = -1;
  const std::string received = link.SwitchReceiver(1, &fd);
  link.from().Fail("of its own", Ending::kUnreachable);
  CHECK(Thrown<std::invalid_argument>([&] { link.from().Switch(1, received); }).find("of its own") !=
        std::string::npos);
  Thrown<std::invalid_argument>([&] { link.from().TakeOver(1, fd); });
  ExpectReason(link.to_end(), "of its own");
}

CASE("a receiver that has switched alone is lost after some seconds, and goes on in another attempt") {
  for (const bool taken_over : {false, true}) {
    FakeLink link;
    link.Begin(1);
    link.from().Try(1, 60);
    int fd = -1;
    if (taken_over) {
      link.SwitchReceiver(1, &fd);
    } else {
      link.to().Switch(1, "");
    }
    const auto now = steady_clock::now();
    link.to().Observe(now + seconds(4));
    CHECK(!Lost(link.to()));
    link.to().Observe(now + seconds(10));
    CHECK(Lost(link.to()));
    link.Begin(2);
    link.from().Try(2, 60);
    int second = -1;
    const std::string received = link.SwitchReceiver(2, &second);
    link.from().Switch(2, received);
    link.from().TakeOver(2, second);
    CHECK(!Lost(link.to()));
    link.Carry(0);
    if (fd >= 0) close(fd);
  }
}

CASE("a receiver whose sender has switched, too, is not lost after some seconds") {
  FakeLink link;
  link.Move(1, 1);
  link.Carry(0);
  link.sender.say_goodbye();  // what the sender has said before has come with it
  Await([&] { return link.to_end().complete.load(); });
  link.to().Observe(steady_clock::now() + seconds(10));
  CHECK(!Lost(link.to()));
}

CASE("a receiver that loses its new ports before it has the new connection says so on that") {
  FakeLink link;
  link.Begin(1);
  link.from().Try(1, 60);
  const std::string received = link.to().Switch(1, "");
  Fake().fail_newest();
  Await([&] { return Lost(link.to()); });
  int fd = -1;
  link.to().TakeOver(1, Socket(&fd));
  link.from().Switch(1, received);
  CHECK(!Lost(link.from()));
  link.from().TakeOver(1, fd);
  Await([&] { return Lost(link.from()); });
}

CASE("silence begins with the first look that finds something under way, however late that is") {
  FakeLink link;
  const auto now = steady_clock::now(), begin = now - seconds(10);
  link.from().Observe(begin);
  Fake().silent[0] = true;
  link.Send(0);
  link.from().Observe(begin + milliseconds(9000));
  CHECK(!link.from().IsSilent(kSilent));
  link.from().Observe(begin + milliseconds(9300));
  CHECK(!link.from().IsSilent(kSilent));
  link.from().Observe(begin + milliseconds(9350));
  CHECK(link.from().IsSilent(kSilent));
}

CASE("silence does not begin with a look that has seen the device work") {
  FakeLink link;
  const auto now = steady_clock::now(), begin = now - seconds(10);
  link.Carry(0);
  link.from().Observe(begin);
  link.from().Observe(begin + milliseconds(50));
  Fake().silent[0] = true;
  link.Send(1);
  link.from().Observe(begin + milliseconds(9000));
  CHECK(!link.from().IsSilent(kSilent));
}

CASE("an idle link asks the peer's device once a second, and so finds that it is out of reach") {
  FakeLink link;
  const auto begin = steady_clock::now() - seconds(10);
  auto look = [&](int ms) { link.from().Observe(begin + milliseconds(ms)); };
  look(0);
  const int before = Fake().posted;
  for (int ms = 50; ms <= 1000; ms += 50) look(ms);
  CHECK_EQ(Fake().posted.load(), before);
  for (int ms = 1050; ms <= 3000; ms += 50) look(ms);
  const int asked = Fake().posted - before;
  CHECK(asked >= 1 && asked <= 2);
  CHECK(!link.from().IsSilent(kSilent));
  Fake().silent[0] = true;
  for (int ms = 3050; ms <= 4050; ms += 50) look(ms);
  CHECK(!link.from().IsSilent(seconds(1)));
  for (int ms = 4100; ms <= 4500; ms += 50) look(ms);
  CHECK(link.from().IsSilent(kSilent));
  // A receiver sends nothing that a device is to acknowledge.
  link.to().Observe(begin);
  link.to().Observe(begin + seconds(5));
  CHECK(!link.to().IsSilent(kSilent));
}

CASE("a link whose peer is out of reach ends as such, and not as one whose process was killed") {
  FakeLink link;
  link.from().Fail("no path to its host has answered", Ending::kUnreachable);
  CHECK(link.from_end().ending == Ending::kUnreachable);
  CHECK(link.ending == Ending::kUnreachable);
  ExpectReason(link.to_end(), "no path to its host has answered");
}

CASE("memory that the new device cannot register gives the attempt up, and not the registration") {
  Held held;
  FakeLink link;
  link.Begin(1);
  Fake().no_memory[1] = true;
  held.Next();
  link.Register();  // by a thread that has other links to serve
  Await([&] { return held.begun.load(); });
  CHECK_EQ(Thrown<std::invalid_argument>([&] { link.from().Try(1, 60); }),
           std::string("this attempt to go on over other ports has failed"));
  link.Carry(0);
  held.LetGo();
}

}  // namespace
}  // namespace jaxring::test
