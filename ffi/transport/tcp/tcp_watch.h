// What the kernel says of a TCP connection over time: whether the peer's host acknowledges nothing, or takes far less
// than before.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "transport/core/movable.h"
#include "transport/core/trickle.h"
#include "transport/tcp/tcp_totals.h"

namespace jaxring {

class TcpWatch {
 public:
  using Time = Movable::Time;
  using GetState = std::function<bool(int fd, TcpState* state)>;

  explicit TcpWatch(GetState get_state) : get_state_(std::move(get_state)) {}
  // Asks the kernel, for the functions that follow. To be called regularly, and not while there is no connection.
  void Look(int fd, Time now);
  // There is no connection now.
  void LookAway(Time now);
  // It is another connection.
  void Begin();
  // Whether the kernel has sent again, or asked for an answer, and nothing was acknowledged, for so long.
  bool IsSilent(std::chrono::milliseconds limit) const;
  // Whether there is more to send, and the peer takes it, but far less than before. To be called regularly.
  bool IsTrickling(Time now);

 private:
  const GetState get_state_;
  std::optional<TcpState> state_;  // as of the last look
  Time state_at_{};
  Time unanswered_since_{};
  Trickle trickle_;
  int64_t sending_us_ = 0;  // as of the last look of `trickle_`
};

}  // namespace jaxring
