// The control connection beside an RDMA link: what the link's two ends tell each other there, and what is known by it.
// Its end means that the peer is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/descriptor.h"

namespace jaxring {

// Used under the lock of its link's pump.
class VerbsControl {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit VerbsControl(Descriptor socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_.get(); }

  // Reads once: something has come, or nothing; the peer has closed the connection; its path has failed.
  enum class Read { kSome, kNothing, kEnded, kFailed };
  Read Receive();
  // Waits until there is something to be read, so long at most.
  void Await(int ms) const;
  // Nothing is read from it any more.
  void Fail() { failed_ = true; }
  bool failed() const { return failed_; }

  // What has come that the link is to act on: the receiving end has lost its queue pairs; the sending end has taken
  // this connection over; a goodbye, with its words.
  enum class Word : uint8_t { kLost, kTakenOver, kGoodbye };
  struct Received {
    Word word;
    std::string text;
  };
  std::optional<Received> Next();
  // Whether the peer has said goodbye, and whether it has all that this end's goodbye told of.
  bool goodbye() const { return goodbye_; }
  bool acknowledged() const { return acknowledged_; }
  bool HasSpoken() const { return goodbye_ || !received_.empty(); }
  // Whether the peer has ended the link for good, and begun to say why.
  bool HasGivenUp() const;
  // Why the link has ended, by what the peer has said.
  std::string LastWord() const;

  void SayAllHere();
  void SayLost();
  void SayGoodbye(const std::string& words);
  // The last word.
  void SayGaveUp(const std::string& why);
  static void SayGaveUp(int fd, const std::string& why);

  // The peer has closed the connection after a goodbye that has overtaken messages. When it did; nothing (the epoch of
  // the clock) before.
  void CloseAt(Time now) { closed_at_ = now; }
  Time closed_at() const { return closed_at_; }

  // Goes on with a new connection, and says there what the old one may not have brought. `sends`: which end of the link
  // it is; `lost`: it has lost its queue pairs since; `complete`: it has all that the peer's goodbye told of.
  void TakeOver(Descriptor socket, bool sends, bool lost, bool complete);

 private:
  void Say(const std::string& words) { SayOn(fd(), words); }
  static void SayOn(int fd, const std::string& words);

  Descriptor socket_;
  bool failed_ = false;       // its path has failed, or the peer may have another one
  std::string received_;      // and not taken
  std::string goodbye_text_;  // what SayGoodbye has sent
  bool goodbye_ = false, acknowledged_ = false;
  Time closed_at_{};
};

}  // namespace jaxring
