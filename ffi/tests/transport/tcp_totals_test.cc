// How fast a connection is said to be, by what the kernel counts on it.
#include "transport/tcp/tcp_totals.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

constexpr size_t kBytes = 8 << 20;

CASE("the kernel says the rate of a connection, and what was sent") {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener, 1) == 0);
  CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const int sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(sender, reinterpret_cast<sockaddr*>(&address), size) == 0);
  const int receiver = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  CHECK(receiver >= 0);
  std::thread reader([receiver] {
    std::vector<char> into(1 << 20);
    for (size_t read = 0; read < kBytes;) {
      const ssize_t n = recv(receiver, into.data(), into.size(), 0);
      CHECK(n > 0);
      read += static_cast<size_t>(n);
    }
  });
  SendTotals before, after;
  CHECK(GetTcpTotals(sender, &before));
  const std::vector<char> from(kBytes);
  CHECK_EQ(send(sender, from.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
  reader.join();
  do {
    CHECK(GetTcpTotals(sender, &after));
    std::this_thread::yield();
  } while (after.bytes - before.bytes < static_cast<int64_t>(kBytes));
  CHECK(after.rate > 0);
  const SendTotals sent = Between(before, after);
  CHECK_EQ(sent.bytes, static_cast<int64_t>(kBytes));
  CHECK(sent.busy_ns <= after.busy_ns - before.busy_ns);
  for (const int fd : {sender, receiver, listener}) close(fd);
}

CASE("the wait for a late acknowledgement is no time of sending") {
  const SendTotals before{1'000'000, 500'000'000, 0};
  // 10 MB at 1 GB/s, behind which the last bytes were acknowledged late, three times.
  CHECK_EQ(Between(before, {11'000'000, 630'000'000, 1'000'000'000}).busy_ns, 10'000'000);
  CHECK_EQ(Between(before, {11'000'000, 630'000'000, 0}).busy_ns, 130'000'000);
  // A slow network.
  CHECK_EQ(Between(before, {11'000'000, 1'300'000'000, 12'000'000}).busy_ns, 800'000'000);
}

}  // namespace
}  // namespace jaxring::test
