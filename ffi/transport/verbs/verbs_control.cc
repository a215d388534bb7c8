#include "transport/verbs/verbs_control.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "transport/core/stream.h"

namespace jaxring {
namespace {

// What the two ends say: that everything arrived which a goodbye told of; a goodbye, with words up to the line's end;
// that the sending end has taken over a new control connection; an error, with its text up to the connection's end;
// that the receiving end has lost its queue pairs.
constexpr char kAllHere = 'a', kGoodbye = 'b', kTakenOver = 'c', kGaveUp = 'e', kLost = 'l';
constexpr size_t kMaxReceived = 4096;

}  // namespace

VerbsControl::Read VerbsControl::Receive() {
  std::array<char, 512> buffer;
  while (true) {
    const ssize_t n = recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      received_.append(buffer.data(), std::min(static_cast<size_t>(n), kMaxReceived - received_.size()));
      return Read::kSome;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Read::kNothing;
    return n == 0 || EndingOf(errno) != Ending::kUnreachable ? Read::kEnded : Read::kFailed;
  }
}

void VerbsControl::Await(int ms) const {
  pollfd word{fd(), POLLIN, 0};
  poll(&word, 1, ms);
}

std::optional<VerbsControl::Received> VerbsControl::Next() {
  while (!received_.empty()) {
    const size_t end = received_.find('\n');
    const char word = received_[0];
    // An error stays, since it is the last word.
    if (word == kGoodbye && end != std::string::npos) {
      Received received{Word::kGoodbye, received_.substr(1, end - 1)};
      goodbye_ = true;
      received_.erase(0, end + 1);
      return received;
    }
    if (word != kAllHere && word != kTakenOver && word != kLost) break;
    received_.erase(0, 1);
    if (word != kAllHere) return Received{word == kLost ? Word::kLost : Word::kTakenOver, ""};
    acknowledged_ = true;
  }
  return std::nullopt;
}

bool VerbsControl::HasGivenUp() const { return !received_.empty() && received_[0] == kGaveUp; }

std::string VerbsControl::LastWord() const {
  return received_.size() > 1 && HasGivenUp() ? "it gave up: " + received_.substr(1) : "its process ended";
}

void VerbsControl::SayOn(int fd, const std::string& words) {
  [[maybe_unused]] ssize_t n = send(fd, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void VerbsControl::SayAllHere() { Say(std::string(1, kAllHere)); }

void VerbsControl::SayLost() { Say(std::string(1, kLost)); }

void VerbsControl::SayGoodbye(const std::string& words) {
  goodbye_text_ = kGoodbye + words + "\n";
  Say(goodbye_text_);
}

void VerbsControl::SayGaveUp(const std::string& why) {
  SayGaveUp(fd(), why);
  shutdown(fd(), SHUT_WR);
}

void VerbsControl::SayGaveUp(int fd, const std::string& why) { SayOn(fd, kGaveUp + why); }

void VerbsControl::TakeOver(Descriptor socket, bool sends, bool lost, bool complete) {
  socket_ = std::move(socket);
  received_.clear();
  failed_ = false;
  if (sends) Say(std::string(1, kTakenOver));
  if (!sends && lost) SayLost();
  if (!goodbye_text_.empty()) Say(goodbye_text_);
  if (complete) SayAllHere();
}

}  // namespace jaxring
