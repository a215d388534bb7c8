// A doorbell on which events of a simulation sleep, instead of threads.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/simulation/virtual_time.h"
#include "transport/core/doorbell.h"

namespace jaxring::test {

class FakeDoorbell final : public Doorbell {
 public:
  explicit FakeDoorbell(VirtualTime* time) : Doorbell(-1, &memory_), time_(time) {}

  // A thread sleeps here, unless the doorbell has been rung since it had the value `seen`; `wakes` is what it does
  // then. Only a ring wakes it: a thread that relies on its timeout sleeps for ever.
  void Sleep(uint32_t seen, VirtualTime::Event wakes) {
    if (Value() != seen) return time_->After(time_->Delay(), std::move(wakes));
    ++page().sleepers;
    sleeping_.push_back(std::move(wakes));
  }

 private:
  void WakeSleepers(int count) override {
    if (sleeping_.empty() || time_->Loses(Loss::kWakeUp)) return;
    for (; count > 0 && !sleeping_.empty(); --count) {
      std::swap(sleeping_[time_->Random(sleeping_.size())], sleeping_.back());
      // It counts as a sleeper until it runs.
      time_->After(time_->Delay(), [this, wakes = std::move(sleeping_.back())] {
        --page().sleepers;
        wakes();
      });
      sleeping_.pop_back();
    }
  }

  Page memory_{};
  VirtualTime* const time_;
  std::vector<VirtualTime::Event> sleeping_;
};

}  // namespace jaxring::test
