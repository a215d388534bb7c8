// Nobody sleeps for an event that no source raises: when the last looker is gone and somebody waits, all sources ask
// for events, whatever they did meanwhile.
#include "transport/core/lookers.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

// As the pumps of a connection: an event has it rest while somebody looks.
class Pump final : public Lookers::Source {
 public:
  explicit Pump(Lookers* lookers) : lookers_(lookers) {}
  void Arm() override {
    std::lock_guard lock(mutex_);
    armed_ = true;
  }
  void OnEvent() {
    std::lock_guard lock(mutex_);
    if (!armed_) return;
    armed_ = false;
    if (lookers_->MayRest()) {
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
  Lookers* lookers_;
  std::mutex mutex_;
  bool armed_ = true;
  int rests_ = 0;
};

CASE("one thread") {
  Lookers lookers;
  auto pump = std::make_shared<Pump>(&lookers);
  lookers.Add(pump);
  pump->OnEvent();
  CHECK(pump->armed() && pump->rests() == 0);
  lookers.Begin();
  lookers.Begin();
  pump->OnEvent();
  CHECK(!pump->armed() && pump->rests() == 1);
  lookers.End(true);  // another one looks still
  CHECK(!pump->armed());
  lookers.End(false);  // and nobody sleeps
  CHECK(!pump->armed());
  lookers.Arm();  // until somebody is about to
  CHECK(pump->armed());
  lookers.Begin();
  pump->OnEvent();
  lookers.End(true);
  CHECK(pump->armed() && pump->rests() == 2);
}

CASE("a race of threads") {
  Lookers lookers;
  auto pump = std::make_shared<Pump>(&lookers);
  lookers.Add(pump);
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
    lookers.Begin();
    round.store(i);
    for (int spin = i % 50; spin > 0; --spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    lookers.End(true);
    while (ready.load() < i) std::this_thread::yield();
    CHECK(pump->armed());
  }
  events.join();
}

}  // namespace
}  // namespace jaxring::test
