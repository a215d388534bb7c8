// Connections that go on over another path when their own one fails. network/paths.h watches them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "transport/core/stream.h"

namespace jaxring {

class Movable {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual ~Movable() = default;
  // Sees how it is now, for the functions that follow. To be called regularly.
  virtual void Observe(Time now) = 0;
  // When the connection was lost or suspended; nothing (the epoch of the clock) while it works.
  virtual Time suspended_at() const = 0;
  // Whether it has ended, since the peer has closed it or it has failed for good.
  virtual bool over() const = 0;
  // Whether the peer's host has all that was written.
  virtual bool IsDelivered() = 0;
  // Whether the peer's host has acknowledged nothing for `limit` of what was sent.
  virtual bool IsSilent(std::chrono::milliseconds limit) const = 0;
  // Whether far less gets through than before. To be called regularly; compares with the call before.
  virtual bool IsTrickling(Time) { return false; }
  // Whether the end that dialled is known to learn that this one has lost the connection. If not, this one learns of an
  // attempt soon or never.
  virtual bool PeerKnows() const = 0;
  // Ends the connection for good: the peer cannot be reached (kUnreachable), or its process has ended (kNoGoodbye).
  // `why` goes into errors.
  virtual void Fail(const std::string& why, Ending ending) = 0;
};

// A link that goes on over another pair of ports. Python agrees on it over a new authenticated connection; the sending
// end has dialled. Each attempt has a number, which makes late messages of an earlier one void.
//
//   the sending end                     the receiving end
//   Offer
//             --- its offer ----------->
//                                       Offer, Prepare
//             <-- its offer ------------
//   Prepare, Try
//             --- it works ------------>
//                                       Switch
//             <-- what it has received -
//   Switch, TakeOver                    TakeOver
//
// The old ports carry the link until Switch, so nothing is stopped before others are known to work. The functions throw
// std::invalid_argument where `attempt` is not the latest one or the link has ended, std::runtime_error where ports do
// not work.
class MovableLink : public Movable {
 public:
  using Place = std::map<std::string, std::string>;

  // From now on the link is suspended, and not ended, when its ports fail.
  virtual void SetMovable() = 0;
  // Begins an attempt: makes an end at a place, as Connector::Offer does, beside the present one.
  virtual std::string Offer(uint64_t attempt, const Place& place) = 0;
  virtual void Prepare(uint64_t attempt, const std::string& peer_offer) = 0;
  // Waits until something has crossed the new ports and come back, `timeout_s` at most.
  virtual void Try(uint64_t attempt, double timeout_s) = 0;
  // Ends the old ports and goes on over the new ones. The receiving end destroys the old ones first and returns what
  // it has received, which the sending end gets as `received`; whatever of the rest it has sent, it sends again.
  virtual std::string Switch(uint64_t attempt, const std::string& received) = 0;
  // Goes on with a new control connection, which it owns, even if it throws. A link that has ended says there why, and
  // throws: to be called, too, where the sending end's Switch throws, since the peer has closed the old connection.
  virtual void TakeOver(uint64_t attempt, int fd) = 0;
};

}  // namespace jaxring
