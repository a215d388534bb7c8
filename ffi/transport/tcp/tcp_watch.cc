#include "transport/tcp/tcp_watch.h"

namespace jaxring {

void TcpWatch::Look(int fd, Time now) {
  TcpState state;
  state_ = get_state_(fd, &state) ? std::optional(state) : std::nullopt;
  state_at_ = now;
  if (!state_ || !(state_->unacked || state_->probes)) {
    unanswered_since_ = {};
  } else if (unanswered_since_ == Time{}) {
    unanswered_since_ = now;
  }
}

void TcpWatch::LookAway(Time now) {
  state_.reset();
  state_at_ = now;
  unanswered_since_ = {};
}

void TcpWatch::Begin() {
  state_.reset();
  unanswered_since_ = {};
  trickle_ = {};
  sending_us_ = 0;
}

bool TcpWatch::IsSilent(std::chrono::milliseconds limit) const {
  // The last acknowledgement alone says nothing of a connection that had nothing to send since.
  if (!state_ || state_->last_ack < limit) return false;
  // Where the peer has no room nothing is under way, but the kernel's questions whether there is room again.
  return ((state_->unacked && state_->retransmits) || state_->probes) && state_at_ - unanswered_since_ >= limit;
}

bool TcpWatch::IsTrickling(Time now) {
  if (!trickle_.IsDue(now) || !state_) return false;
  // Otherwise it had nothing to send, or the peer's process was what it waited for.
  const int64_t sending_us = state_->busy_us - state_->full_us;
  const bool busy = static_cast<double>(sending_us - sending_us_) > 0.9e6 * trickle_.SecondsSince(now);
  sending_us_ = sending_us;
  return trickle_.Look(now, state_->acked, busy, state_->queued);
}

}  // namespace jaxring
