// Which control connection counts while an RDMA link goes on over other ports, with a new one.
#pragma once

#include <chrono>
#include <cstdint>

namespace jaxring {

// Used under the lock of its link's pump.
class VerbsHandover {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The new ports are known to work: the peer may go on with the new connection already.
  void Begin() { state_ = State::kBegun; }
  // This end goes on over the new ports.
  void SwitchAt(Time now) {
    state_ = State::kSwitched;
    switched_at_ = now;
  }
  bool switched() const { return state_ == State::kSwitched; }
  // This end has the new connection. `sends`: which end of the link it is.
  void TakeOver(bool sends) {
    state_ = State::kNone;
    confirmed_ = sends;
  }
  // The sending end has taken it over, too.
  void Confirm() { confirmed_ = true; }
  // Whether neither end has another one.
  bool IsOver() const { return confirmed_ && state_ == State::kNone; }
  // Whether this end has switched so long ago, and the peer is not known to have done so.
  bool IsUnconfirmed(Time now, std::chrono::seconds limit) const {
    return (switched() || !confirmed_) && now - switched_at_ > limit;
  }

 private:
  enum class State : uint8_t { kNone, kBegun, kSwitched };
  State state_ = State::kNone;
  bool confirmed_ = true;
  Time switched_at_{};
};

}  // namespace jaxring
