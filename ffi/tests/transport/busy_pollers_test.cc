// No thread sleeps while the sources' events are disabled: when the last busy-polling thread has left and another
// thread is about to sleep, all sources have their events enabled, whatever happened in between.
#include "transport/core/busy_pollers.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

// Behaves as the pumps of a connection: at an event it disables its events if a busy-polling thread is there.
class Pump final : public BusyPollers::Source {
 public:
  explicit Pump(BusyPollers* busy_pollers) : busy_pollers_(busy_pollers) {}
  void EnableEvents() override {
    std::lock_guard lock(mutex_);
    armed_ = true;
  }
  void OnEvent() {
    std::lock_guard lock(mutex_);
    if (!armed_) return;
    armed_ = false;
    if (busy_pollers_->MayDisableEvents()) {
      ++rests_;
    } else {
      armed_ = true;
    }
  }
  bool armed() {
    std::lock_guard lock(mutex_);
    return armed_;
  }
  int rests() const { return rests_; }

 private:
  BusyPollers* busy_pollers_;
  std::mutex mutex_;
  bool armed_ = true;
  int rests_ = 0;
};

CASE("events of one thread") {
  BusyPollers busy_pollers;
  auto pump = std::make_shared<Pump>(&busy_pollers);
  busy_pollers.Add(pump);
  pump->OnEvent();
  CHECK(pump->armed() && pump->rests() == 0);
  busy_pollers.Begin();
  busy_pollers.Begin();
  pump->OnEvent();
  CHECK(!pump->armed() && pump->rests() == 1);
  busy_pollers.End(true);  // another thread polls still
  CHECK(!pump->armed());
  busy_pollers.End(false);  // no thread polls any more, but none sleeps either
  CHECK(!pump->armed());
  busy_pollers.EnableEvents();  // as a thread does before it sleeps
  CHECK(pump->armed());
  busy_pollers.Begin();
  pump->OnEvent();
  busy_pollers.End(true);
  CHECK(pump->armed() && pump->rests() == 2);
}

CASE("events race with the last busy-polling thread") {
  BusyPollers busy_pollers;
  auto pump = std::make_shared<Pump>(&busy_pollers);
  busy_pollers.Add(pump);
  std::atomic<int> round{0}, ready{0};
  constexpr int kRounds = 20000;
  std::thread events([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (round.load() < i) std::this_thread::yield();
      pump->OnEvent();
      ready.store(i);
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    busy_pollers.Begin();
    round.store(i);
    for (int spin = i % 50; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    busy_pollers.End(true);
    while (ready.load() < i) std::this_thread::yield();
    CHECK(pump->armed());
  }
  events.join();
}

}  // namespace
}  // namespace jaxring::test
