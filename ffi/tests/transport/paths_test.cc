// Which connections count as failed, as healed and as given up, by what the kernel says of them from look to look.
#include "network/paths.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cases.h"
#include "transport/core/poller.h"

namespace jaxring::test {
namespace {

using std::chrono::milliseconds;

constexpr const char* kSilence = "has acknowledged nothing for 0.3 s";
constexpr const char* kTrickle = "takes less than a twentieth of what it took before";
constexpr const char* kNoOther = "the connection with it broke, and it has made no other one within 2 s";
constexpr const char* kGivenUp = "no path to its host has answered for 10 s";

std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> Connection() {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {std::make_unique<Stream>(ends[0]), std::make_unique<Stream>(ends[1])};
}

// One end of a connection, of which the kernel says `state`.
struct Watched {
  explicit Watched(bool dialled) : end{"a", dialled} {
    auto [here, there] = Connection();
    stream = paths.Add(std::move(here), end, &poller);
    peer = std::move(there);
  }

  // A look so many milliseconds after the beginning: what Python is told.
  std::string At(int64_t ms) {
    paths.Check(begin + milliseconds(ms));
    const auto lost = paths.TakeLost(0);
    CHECK(lost && lost->size() <= 1);
    return lost->empty() ? "" : lost->front().why;
  }

  // Why it has been given up, "" if it has not.
  std::string GivenUp() const { return stream->given_up() ? stream->Why() : ""; }

  // An attempt whose other end is `peer` from then on.
  void Resume(uint64_t attempt) {
    paths.Suspend(end, attempt);
    paths.Drain(end, attempt);
    auto [here, there] = Connection();
    paths.Resume(end, attempt, std::move(here), 0, true);
    peer = std::move(there);
  }

  TcpState state{};
  const Paths::End end;
  Paths paths{10.0, [this](int, TcpState* now) {
                *now = state;
                return true;
              }};
  Poller poller{[] {}};
  std::unique_ptr<Stream> stream, peer;
  const Paths::Time begin = std::chrono::steady_clock::now();
};

CASE("what was sent after a long pause is silent from when it was sent") {
  Watched watched(true);
  CHECK_EQ(watched.At(0), std::string());
  watched.state = {true, true, milliseconds(15200), 0, 0, 0, 100};
  CHECK_EQ(watched.At(15000), std::string());
  CHECK_EQ(watched.At(15250), std::string());
  CHECK_EQ(watched.At(15300), kSilence);
  CHECK_EQ(watched.At(15350), std::string());
  CHECK_EQ(watched.GivenUp(), std::string());
  CHECK(watched.paths.IsLost(watched.end));
  watched.At(24950);
  CHECK_EQ(watched.GivenUp(), std::string());
  CHECK(watched.paths.Lives(watched.end));
  watched.At(25000);
  CHECK_EQ(watched.GivenUp(), kGivenUp);
  CHECK(!watched.paths.Lives(watched.end));
  CHECK(!watched.paths.IsLost(watched.end));
}

CASE("what is acknowledged now and then, or was not sent again, is not silent") {
  Watched watched(true);
  watched.state = {true, true, milliseconds(299), 0, 0, 0, 100};
  for (int ms = 0; ms <= 1000; ms += 50) CHECK_EQ(watched.At(ms), std::string());
  watched.state = {true, false, milliseconds(5000), 0, 0, 0, 100};
  CHECK_EQ(watched.At(1050), std::string());
  watched.state = {false, true, milliseconds(5000), 0, 0, 0, 100};
  CHECK_EQ(watched.At(1100), std::string());
  watched.state = {true, true, milliseconds(300), 0, 0, 0, 100};
  CHECK_EQ(watched.At(1150), std::string());
  CHECK_EQ(watched.At(1450), kSilence);
}

CASE("one whose peer has had no room for long is silent when it does not answer whether it has room again") {
  Watched watched(true);
  watched.state = {false, false, milliseconds(20000), 0, 0, 0, 100};
  for (int ms = 0; ms <= 1000; ms += 50) CHECK_EQ(watched.At(ms), std::string());
  // A probe that is answered within the time of a few looks.
  watched.state.probes = true;
  for (int ms = 1050; ms <= 1250; ms += 50) CHECK_EQ(watched.At(ms), std::string());
  watched.state = {false, false, milliseconds(50), 0, 0, 0, 100};
  CHECK_EQ(watched.At(1300), std::string());
  watched.state = {false, false, milliseconds(20000), 0, 0, 0, 100, true};
  for (int ms = 1350; ms < 1650; ms += 50) CHECK_EQ(watched.At(ms), std::string());
  CHECK_EQ(watched.At(1650), kSilence);
  CHECK_EQ(watched.GivenUp(), std::string());
}

CASE("one that works again by itself is healed after two seconds, and may fail again") {
  Watched watched(true);
  watched.state = {true, true, milliseconds(400), 0, 0, 0, 100};
  watched.At(0);
  CHECK_EQ(watched.At(400), kSilence);
  watched.state = {};
  watched.At(2350);
  CHECK(watched.paths.IsLost(watched.end));
  watched.At(2450);
  CHECK(!watched.paths.IsLost(watched.end));
  CHECK_EQ(watched.paths.Count().second, 0);
  watched.state = {true, true, milliseconds(400), 0, 0, 0, 100};
  CHECK_EQ(watched.At(2500), std::string());
  CHECK_EQ(watched.At(2800), kSilence);
}

CASE("one that gets little through is a failed one, unless the peer takes nothing") {
  for (const bool full : {false, true}) {
    Watched watched(true);
    watched.state = {true, false, milliseconds(0), 0, 0, 0, 1 << 30};
    std::string why;
    int reported = 0;
    for (int round = 0; round < 8; ++round) {
      why += watched.At(round * 200);
      if (!why.empty() && reported == 0) reported = round;
      watched.state.acked += round < 4 ? 20'000'000 : 20'000;
      watched.state.busy_us += 200'000;
      watched.state.full_us += full ? 200'000 : 0;
    }
    CHECK_EQ(why, full ? std::string() : kTrickle);
    CHECK_EQ(reported, full ? 0 : 6);
  }
}

// A stream whose kernel has given it up.
class TimedOut final : public Stream {
 public:
  using Stream::Stream;
  ssize_t Read(void* /*to*/, size_t /*bytes*/) override {
    errno = ETIMEDOUT;
    return -1;
  }
};

CASE("the time that is left begins when the failure was noticed, also where the kernel gives up later") {
  Poller poller([] {});
  const TcpState silent{true, true, milliseconds(9000), 0, 0, 0, 100};
  Paths paths(10.0, [&silent](int, TcpState* now) {
    *now = silent;
    return true;
  });
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const Stream other(ends[1]);
  const auto stream = paths.Add(std::make_unique<TimedOut>(ends[0]), {"a", true}, &poller);
  const auto now = std::chrono::steady_clock::now();
  paths.Check(now - milliseconds(9500));
  paths.Check(now - milliseconds(9000));
  CHECK_EQ(paths.TakeLost(0)->size(), 1u);
  char byte;
  CHECK(stream->Read(&byte, 1) == -1 && errno == EAGAIN);
  paths.Check(now + milliseconds(950));
  CHECK(!stream->given_up());
  paths.Check(now + milliseconds(1050));
  CHECK(stream->given_up());
}

CASE("an end that has not dialled waits for the other one, which may have given up as well") {
  for (const bool dialled : {true, false}) {
    Poller poller([] {});
    Paths paths(10.0);
    const Paths::End end{"a", dialled};
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const Stream other(ends[1]);
    const auto begin = std::chrono::steady_clock::now();
    const auto stream = paths.Add(std::make_unique<TimedOut>(ends[0]), end, &poller);
    char byte;
    CHECK(stream->Read(&byte, 1) == -1 && errno == EAGAIN);
    paths.Check(begin + milliseconds(1900));
    CHECK(!stream->given_up());
    const auto lost = paths.TakeLost(0);
    CHECK_EQ(lost->size(), dialled ? 1u : 0u);
    if (dialled) CHECK_EQ(lost->front().why, "cannot be reached");
    paths.Check(begin + milliseconds(9900));
    CHECK_EQ(stream->given_up(), !dialled);
    paths.Check(begin + std::chrono::hours(1));
    CHECK_EQ(stream->Why(), dialled ? kGivenUp : kNoOther);
  }
}

CASE("a connection that ends before the peer has resumed on it is lost, and not ended") {
  for (const bool dialled : {true, false}) {
    for (const bool says : {true, false}) {
      Watched watched(dialled);
      watched.Resume(1);
      if (says) CHECK(watched.peer->Write("{", 1) == 1);
      watched.peer.reset();
      char byte;
      CHECK(watched.stream->Read(&byte, 1) == -1 && errno == EAGAIN);
      CHECK_EQ(watched.At(9900), dialled ? "cannot be reached" : std::string());
      CHECK_EQ(watched.GivenUp(), std::string());
      watched.Resume(2);
      CHECK(watched.peer->Write("rx", 2) == 2);
      CHECK(watched.stream->Read(&byte, 1) == 1 && byte == 'x');
      // From then on it is the peer's end.
      watched.peer.reset();
      errno = 0;
      CHECK(watched.stream->Read(&byte, 1) <= 0 && errno != EAGAIN);
    }
  }
}

CASE("what is written to a connection on which the peer has not resumed is kept") {
  Watched watched(true);
  CHECK(watched.stream->Write("begin", 5) == 5);
  watched.Resume(1);
  watched.peer.reset();
  CHECK(watched.stream->Write("more", 4) == -1 && errno == EAGAIN);
  // The word of a receiver, which says it once.
  CHECK(watched.stream->Write("b", 1) == 1);
  watched.Resume(2);
  CHECK(watched.stream->Flush());
  char bytes[16];
  CHECK(watched.peer->Read(bytes, sizeof bytes) == 7);
  CHECK_EQ(std::string(bytes, 7), "rbeginb");
}

CASE("what the connection has not taken yet is kept, however many single bytes come behind it") {
  const auto byte = [](size_t n) { return static_cast<char>(n * 31 + n / 251); };
  Watched watched(true);
  std::string all, got;
  char bytes[4096];
  while (all.size() < 120 * 1024) {
    const char next = byte(all.size());
    CHECK(watched.stream->Write(&next, 1) == 1);
    all += next;
    CHECK(watched.peer->Read(bytes, sizeof bytes) == 1);
  }
  watched.Resume(1);  // the peer has none of it
  const int little = 4096;
  CHECK(setsockopt(watched.stream->fd(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
  CHECK(watched.peer->Write("r", 1) == 1);
  while (all.size() < 240 * 1024) {
    const char next = byte(all.size());
    CHECK(watched.stream->Write(&next, 1) == 1);
    all += next;
  }
  while (got.size() <= all.size()) {
    watched.stream->Flush();
    const ssize_t n = watched.peer->Read(bytes, sizeof bytes);
    CHECK(n > 0);
    got.append(bytes, static_cast<size_t>(n));
  }
  CHECK(got == "r" + all);
}

CASE("nothing is delivered before the peer has resumed") {
  Watched watched(true);
  CHECK(watched.stream->Write("begin", 5) == 5);
  watched.Resume(1);
  CHECK(watched.stream->Flush());
  char bytes[16];
  CHECK(watched.peer->Read(bytes, sizeof bytes) == 6);
  CHECK(!watched.paths.Settled());
  CHECK(watched.peer->Write("r", 1) == 1);
  CHECK(watched.paths.Settled());
}

CASE("one that is given up says why, and whether the peer's process has ended") {
  for (const Ending ending : {Ending::kUnreachable, Ending::kNoGoodbye}) {
    Watched watched(true);
    watched.paths.Fail(watched.end, "it does not listen any more", ending);
    char byte;
    CHECK(watched.stream->Read(&byte, 1) == -1 && EndingOf(errno) == ending);
    CHECK(watched.stream->Write("begin", 5) == -1 && EndingOf(errno) == ending);
    CHECK_EQ(watched.stream->WhyBroken("the connection broke"), "it does not listen any more");
  }
}

}  // namespace
}  // namespace jaxring::test
