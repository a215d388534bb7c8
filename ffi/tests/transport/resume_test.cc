// Links and control connections whose connection is replaced again and again at any moment: each message arrives once,
// in order. Over TCP, whose kernel acknowledges what no process has read, with little room, so that messages are cut.
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "network/paths.h"
#include "network/peers/control.h"
#include "tests/support/cases.h"
#include "transport/tcp/tcp.h"
#include "transport/tcp/tcp_totals.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kSlot = 4096;
constexpr int kMessages = 5000, kMoves = 30;

using Ends = std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>;

Ends Connection() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), from = socket(AF_INET, SOCK_STREAM, 0);
  const int bytes = 16 * 1024, yes = 1;
  setsockopt(from, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  // Room for more than a connection keeps at first.
  const int much = 1 << 20;
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &much, sizeof much);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  CHECK(bind(listener, any, size) == 0 && listen(listener, 1) == 0 && getsockname(listener, any, &size) == 0);
  CHECK(connect(from, any, size) == 0);
  const int to = accept(listener, nullptr, nullptr);
  CHECK(to >= 0);
  close(listener);
  for (int end : {from, to}) {
    setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
  return {std::make_unique<Stream>(from), std::make_unique<Stream>(to)};
}

CASE("a connection whose receiver reads nothing for seconds has not failed") {
  Paths paths(10.0);
  Poller poller([] {});
  auto [here, there] = Connection();
  const auto stream = paths.Add(std::move(here), {"a", true}, &poller);
  const std::vector<char> bytes(64 * 1024);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
  for (auto now = end; (now = std::chrono::steady_clock::now()) < end;) {
    // The kernel has no room any more, and asks whether there is some at 0.2, 0.6, 1.4 s and so on.
    while (stream->Write(bytes.data(), bytes.size()) > 0) {
    }
    CHECK(errno == EAGAIN);
    paths.Check(now);
    CHECK(paths.TakeLost(0)->empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

CASE("after a long pause a single question for room that has no answer tells of a failed path") {
  auto [here, there] = Connection();
  const int fd = here->fd();
  const auto info = [fd] {
    tcp_info info{};
    socklen_t size = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    return info;
  };
  TcpState known;
  if (!GetTcpState(fd, &known)) {
    std::puts("  not run: tcp_info is cut off here, as qemu-user does it");
    return;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const std::vector<char> bytes(64 * 1024);
  for (tcp_info now = info(); now.tcpi_backoff < 3 || now.tcpi_probes > 0; now = info()) {
    CHECK(std::chrono::steady_clock::now() < end);
    while (here->Write(bytes.data(), bytes.size()) > 0) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // Nothing reaches the receiver's kernel any more.
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop};
  CHECK(setsockopt(there->fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
  for (bool asked = false; !asked;) {
    CHECK(std::chrono::steady_clock::now() < end);
    const int before = info().tcpi_probes;
    TcpState state;
    CHECK(GetTcpState(fd, &state));
    const int after = info().tcpi_probes;
    CHECK(after < 2);
    asked = before == 1 && after == 1;
    CHECK(!asked || state.probes);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

class SilentNotifier final : public Notifier {
 public:
  void Notify() override {}
};

// The two ends of connection "a", and what moves it.
struct Moved {
  Paths paths{10.0};
  const Paths::End dialler{"a", true}, acceptor{"a", false};
  uint64_t attempt = 0;
  std::vector<std::unique_ptr<Stream>> silent;  // ends that their process does not read

  // The other end has not resumed: it is stopped, or has given this attempt up, or says so first.
  void LeaveAlone(std::unique_ptr<Stream> end, uint32_t how) {
    constexpr char kError[] = R"({"error": "no"})";
    if (how == 0) return silent.push_back(std::move(end));
    if (how == 1) CHECK(end->Stream::Write(kError, sizeof kError - 1) == sizeof kError - 1);
  }

  // As Python does it, in the order of transport/tcp/resumable.h.
  void Move(std::mt19937& random) {
    ++attempt;
    paths.Suspend(dialler, attempt);
    paths.Suspend(acceptor, attempt);
    const uint64_t there = paths.Drain(acceptor, attempt);
    if (random() % 4 == 0) return;  // the request failed here: the next attempt mends it
    const uint64_t here = paths.Drain(dialler, attempt);
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    auto [a, b] = Connection();
    // Either may be the first to go on.
    if (random() % 2 == 0) {
      paths.Resume(dialler, attempt, std::move(a), there, true);
      if (random() % 4 == 0) return LeaveAlone(std::move(b), random() % 3);
      paths.Resume(acceptor, attempt, std::move(b), here, true);
    } else {
      paths.Resume(acceptor, attempt, std::move(b), here, true);
      if (random() % 4 == 0) return LeaveAlone(std::move(a), random() % 3);
      paths.Resume(dialler, attempt, std::move(a), there, true);
    }
  }
};

// Sizes and bytes of a message follow from its number.
uint32_t BytesOf(int number) { return static_cast<uint32_t>(number) * 2654435761u % (kSlot + 1); }
bool IsSmall(int number) { return number % 3 != 0; }

void Publish(SendLink& link, int number) {
  RingSender& ring = link.ring(IsSmall(number) ? Protocol::kLL : Protocol::kSimple);
  uint64_t position;
  while (!ring.Reserve(&position)) std::this_thread::yield();
  const uint32_t bytes = std::min(BytesOf(number), ring.memory().shape().payload_bytes);
  std::memset(ring.payload(position), number & 0xff, bytes);
  ring.Publish(position, {static_cast<uint64_t>(number), 0, 1, 0, 0}, {bytes, 0, 0});
}

void Take(RecvLink& link, int number) {
  RingReceiver& ring = link.ring(IsSmall(number) ? Protocol::kLL : Protocol::kSimple);
  uint64_t position;
  MessageId id;
  const char* payload;
  Message message;
  while (!ring.FindNext(&position, &id, &payload, &message)) {
    if (link.notifier) link.notifier->Poll();
    std::this_thread::yield();
  }
  CHECK_EQ(id.op, static_cast<uint64_t>(number));
  CHECK_EQ(message.bytes, std::min(BytesOf(number), ring.memory().shape().payload_bytes));
  for (uint32_t i = 0; i < message.bytes; ++i) CHECK_EQ(payload[i] & 0xff, number & 0xff);
  ring.Release(position);
}

void RunLink(bool polls) {
  Moved moved;
  Poller poller([] {});
  BusyPollers busy_pollers;
  SilentNotifier notifier;
  auto [from, to] = Connection();
  auto send = MakeTcpSendLink(moved.paths.Add(std::move(from), moved.dialler, &poller), &poller,
                              LinkMemory::Anonymous(kSlot), &notifier);
  auto recv = MakeTcpRecvLink(moved.paths.Add(std::move(to), moved.acceptor, &poller), &poller, &busy_pollers,
                              LinkMemory::Anonymous(kSlot), &notifier);
  std::atomic<bool> over{false};
  std::atomic<int> moves{0};
  std::thread publisher([&] {
    for (int number = 0; number < kMessages; ++number) {
      // However fast the machine is, there are moves meanwhile.
      while (number > kMessages / 2 && moves < kMoves) std::this_thread::yield();
      Publish(*send, number);
    }
  });
  std::thread taker([&] {
    if (polls) busy_pollers.Begin();
    for (int number = 0; number < kMessages; ++number) Take(*recv, number);
    if (polls) busy_pollers.End(false);
    over = true;
  });
  std::mt19937 random(polls);
  while (!over) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    moved.Move(random);
    ++moves;
  }
  publisher.join();
  taker.join();
  CHECK(!send->end.closed && !recv->end.closed);
  CHECK_EQ(moved.paths.Count().first, 1);
  poller.Clear();
  send.reset();
  recv.reset();
  CHECK_EQ(moved.paths.Count().first, 0);
}

CASE("messages that are taken by the poller's thread") { RunLink(false); }
CASE("messages that are taken by a thread that polls") { RunLink(true); }

CASE("a control connection") {
  Moved moved;
  Poller poller([] {});
  std::atomic<int> delivered[2] = {0, 0};
  std::shared_ptr<ControlLink> links[2];
  auto ends = Connection();
  for (int i : {0, 1}) {
    auto stream =
        moved.paths.Add(std::move(i == 0 ? ends.first : ends.second), i == 0 ? moved.dialler : moved.acceptor, &poller);
    links[i] = std::make_shared<ControlLink>(
        std::move(stream), 10.0, &poller,
        [&delivered, i](const ControlFrame& frame) { CHECK_EQ(frame.text, std::to_string(delivered[i]++)); },
        [](const std::string& why, Ending) { Fail(__FILE__, __LINE__, why.c_str()); });
    poller.Add(links[i]->fd(), 0x2001, links[i]);
  }
  std::mt19937 random(1);
  for (int number = 0; number < kMessages; ++number) {
    for (auto& link : links) {
      ControlFrame frame;
      frame.kind = ControlFrame::Kind::kMessage;
      frame.text = std::to_string(number);
      CHECK(link->Send(EncodeFrame(frame), false));
    }
    if (random() % 50 == 0) moved.Move(random);
    while (number - std::min(delivered[0], delivered[1]) > 500) {
      moved.Move(random);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  while (std::min(delivered[0], delivered[1]) < kMessages) {
    moved.Move(random);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  poller.Clear();
}

CASE("a word of the receiver's that finds no connection, and one that is given up") {
  Moved moved;
  Poller poller([] {});
  BusyPollers busy_pollers;
  SilentNotifier notifier;
  auto [from, to] = Connection();
  std::atomic<int> ended{-1};
  auto send =
      MakeTcpSendLink(moved.paths.Add(std::move(from), moved.dialler, &poller), &poller, LinkMemory::Anonymous(kSlot),
                      &notifier, [&](const std::string&, Ending ending) { ended = static_cast<int>(ending); });
  auto recv = MakeTcpRecvLink(moved.paths.Add(std::move(to), moved.acceptor, &poller), &poller, &busy_pollers,
                              LinkMemory::Anonymous(kSlot), &notifier);
  CHECK(moved.paths.Settled());
  moved.paths.Suspend(moved.dialler, 1);
  moved.paths.Suspend(moved.acceptor, 1);
  SayTcpGoodbye(*recv);
  CHECK(!moved.paths.Settled());
  const uint64_t there = moved.paths.Drain(moved.acceptor, 1), here = moved.paths.Drain(moved.dialler, 1);
  auto [a, b] = Connection();
  moved.paths.Resume(moved.acceptor, 1, std::move(b), here, true);
  moved.paths.Resume(moved.dialler, 1, std::move(a), there, true);
  while (!moved.paths.Settled()) std::this_thread::yield();
  CHECK_EQ(moved.paths.Count().second, 1);
  moved.paths.Fail(moved.acceptor, "no more", Ending::kUnreachable);
  while (ended < 0) std::this_thread::yield();
  CHECK_EQ(ended.load(), static_cast<int>(Ending::kGoodbye));
  CHECK_EQ(moved.paths.Count().first, 0);
  CHECK(moved.paths.Settled());
  poller.Clear();
}

CASE("an attempt that comes late is refused, and a connection that is given up ends") {
  Moved moved;
  Poller poller([] {});
  auto [from, to] = Connection();
  auto stream = moved.paths.Add(std::move(from), moved.dialler, &poller);
  auto refused = [&](auto call) {
    try {
      call();
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(refused([&] { moved.paths.Add(Connection().first, moved.dialler, &poller); }));
  CHECK(moved.paths.Settled());
  moved.paths.Suspend(moved.dialler, 2);
  CHECK(!moved.paths.Settled());
  CHECK(refused([&] { moved.paths.Suspend(moved.dialler, 2); }));
  CHECK(refused([&] { moved.paths.Drain(moved.dialler, 1); }));
  CHECK_EQ(moved.paths.Drain(moved.dialler, 2), 0u);
  CHECK(refused([&] { moved.paths.Resume(moved.dialler, 1, Connection().first, 0, true); }));
  CHECK(refused([&] { moved.paths.Resume(moved.dialler, 2, Connection().first, 1, true); }));
  CHECK(refused([&] { moved.paths.Suspend(moved.acceptor, 3); }));
  char byte;
  CHECK(stream->Read(&byte, 1) == -1 && errno == EAGAIN);
  moved.paths.Check(std::chrono::steady_clock::now() + std::chrono::seconds(11));
  CHECK(stream->Read(&byte, 1) == -1 && errno == ETIMEDOUT);
  CHECK_EQ(stream->Why(), "no path to its host has answered for 10 s");
  CHECK(refused([&] { moved.paths.Suspend(moved.dialler, 4); }));
}

}  // namespace
}  // namespace jaxring::test
