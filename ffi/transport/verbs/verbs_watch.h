// Notices that nothing completes on an RDMA link though something is under way.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace jaxring {

// Used under the lock of its link's pump.
class VerbsWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void Count(size_t completions) { completions_ += completions; }
  // Begins a look. Returns whether nothing has completed since the last one.
  bool Begin(Time now) {
    const bool idle = completions_ == observed_;
    if (!idle || completed_at_ == Time{}) completed_at_ = now;
    return idle;
  }
  // How long ago the last look was that has seen another completion.
  std::chrono::steady_clock::duration IdleFor(Time now) const { return now - completed_at_; }
  // Ends it. `awaits`: whether something is under way that will complete.
  void End(Time now, bool awaits) {
    const bool idle = completions_ == observed_;
    if (!idle || !awaits || !awaited_) stalled_since_ = now;
    awaited_ = awaits && idle;  // otherwise nobody has asked whether anything is under way
    observed_ = completions_;
    observed_at_ = now;
  }
  // The link goes on over other ports.
  void Restart(Time now) {
    awaited_ = false;
    observed_at_ = stalled_since_ = completed_at_ = now;
  }
  // Whether something was under way for so long, and nothing completed. What has come since the last look is not known,
  // which may be long ago on a busy machine.
  bool IsSilent(std::chrono::milliseconds limit) const {
    return stalled_since_ != Time{} && observed_at_ - stalled_since_ > limit;
  }

 private:
  uint64_t completions_ = 0;
  uint64_t observed_ = 0;  // as of the last look
  bool awaited_ = false;   // there was one to come at the last look
  Time observed_at_{}, stalled_since_{};
  Time completed_at_{};  // the last look that saw others than the one before
};

}  // namespace jaxring
