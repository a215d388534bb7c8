// TLS between two ends, with a third party on the connection that sees every byte and may change it.
#include "transport/tcp/tls.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

const std::string kKey(32, 'k');
constexpr double kPatience = 60;

// Carries bytes between two ends and records them.
class Between {
 public:
  Between() {
    int left[2], right[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, left) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, right) == 0);
    ends[0] = left[0];
    ends[1] = right[0];
    inner_[0] = left[1];
    inner_[1] = right[1];
    thread_ = std::thread([this] { Carry(); });
  }
  ~Between() {
    Stop();
    close(inner_[0]);
    close(inner_[1]);
  }
  // Changes the next byte that end 0 sends.
  void Alter() { alter_ = true; }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // Valid after `Stop`.
  const std::string& seen() const { return seen_; }
  int ends[2];

 private:
  void Carry() {
    pollfd waits[2] = {{inner_[0], POLLIN, 0}, {inner_[1], POLLIN, 0}};
    char bytes[4096];
    while (!stop_) {
      poll(waits, 2, 10);
      for (int i = 0; i < 2; ++i) {
        const ssize_t n = recv(inner_[i], bytes, sizeof bytes, 0);
        if (n == 0) waits[i].fd = -1;
        if (n <= 0) continue;
        seen_.append(bytes, static_cast<size_t>(n));
        if (i == 0 && alter_.exchange(false)) bytes[n - 1] = static_cast<char>(bytes[n - 1] ^ 1);
        for (ssize_t sent = 0; sent < n && !stop_;) {
          const ssize_t more = send(inner_[1 - i], bytes + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
          if (more > 0) {
            sent += more;
          } else if (errno != EAGAIN) {
            break;
          }
        }
      }
    }
  }
  int inner_[2];
  std::atomic<bool> stop_{false}, alter_{false};
  std::string seen_;
  std::thread thread_;
};

std::string Error(int fd, const std::string& key, bool dialled, double patience, std::unique_ptr<Stream>* made) {
  try {
    *made = MakeTlsStream(fd, key, dialled, patience);
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

struct Ends {
  Ends(Between& between, const std::string& other_key) {
    std::thread there([&] { errors[1] = Error(between.ends[1], other_key, false, kPatience, &streams[1]); });
    errors[0] = Error(between.ends[0], kKey, true, kPatience, &streams[0]);
    there.join();
  }
  std::unique_ptr<Stream> streams[2];
  std::string errors[2];
};

bool Again() { return errno == EAGAIN || errno == EINTR; }

// Sends `text` from one end to the other and returns what arrived. If the stream fails, `why` says how.
std::string Pass(Stream& from, Stream& to, const std::string& text, std::string* why) {
  std::thread sender([&] {
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = from.Write(text.data() + sent, text.size() - sent);
      if (n > 0) sent += static_cast<size_t>(n);
      if (n <= 0 && !Again()) return;
      if (n < 0) std::this_thread::yield();
    }
  });
  std::string got;
  char bytes[10000];
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (got.size() < text.size()) {
    CHECK(std::chrono::steady_clock::now() < limit);
    const ssize_t n = to.Read(bytes, sizeof bytes);
    if (n > 0) got.append(bytes, static_cast<size_t>(n));
    if (n == 0 || (n < 0 && !Again())) {
      *why = n == 0 ? "end" : to.Why();
      shutdown(from.fd(), SHUT_RDWR);
      break;
    }
    if (n < 0) std::this_thread::yield();
  }
  sender.join();
  return got;
}

std::string Text() {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "this is the pattern " + std::to_string(i) + ";";
  return text;
}

CASE("bytes are encrypted") {
  const std::string text = Text();
  std::string why;
  Between between;
  Ends ends(between, kKey);
  CHECK_EQ(ends.errors[0], std::string());
  CHECK_EQ(ends.errors[1], std::string());
  CHECK(Pass(*ends.streams[0], *ends.streams[1], text, &why) == text);
  CHECK(Pass(*ends.streams[1], *ends.streams[0], text, &why) == text);
  CHECK(Pass(*ends.streams[0], *ends.streams[1], "x", &why) == "x");
  between.Stop();
  const std::string& seen = between.seen();
  CHECK(seen.size() > 2 * text.size());
  CHECK(seen.find("pattern") == std::string::npos);
  CHECK(seen.find(kKey.substr(0, 8)) == std::string::npos);
}

CASE("altered bytes") {
  Between between;
  Ends ends(between, kKey);
  CHECK(ends.errors[0].empty() && ends.errors[1].empty());
  std::string why;
  CHECK(Pass(*ends.streams[0], *ends.streams[1], "hello", &why) == "hello");
  between.Alter();
  const std::string text = Text(), got = Pass(*ends.streams[0], *ends.streams[1], text, &why);
  // The receiver gets no byte of the record that was changed.
  CHECK(got.size() < text.size() && text.compare(0, got.size(), got) == 0);
  CHECK(why.find("TLS") != std::string::npos);
}

CASE("another key") {
  Between between;
  Ends ends(between, std::string(32, 'x'));
  CHECK(ends.errors[0].find("TLS handshake") != std::string::npos);
  CHECK(ends.errors[1].find("TLS handshake") != std::string::npos);
}

CASE("a silent peer") {
  Between between;
  std::unique_ptr<Stream> stream;
  CHECK(Error(between.ends[0], kKey, true, 0.1, &stream).find("in time") != std::string::npos);
  close(between.ends[1]);
}

CASE("the system's OpenSSL") { CHECK(LoadTls().find("OpenSSL") == 0); }

}  // namespace
}  // namespace jaxring::test
