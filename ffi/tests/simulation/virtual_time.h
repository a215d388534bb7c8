// Virtual time: events in the order of their moments, in one thread, and a generator of random numbers that decides all
// that a schedule leaves open. The same seed gives the same events.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/clock.h"

namespace jaxring::test {

// What a mutation takes away, and which of its kind, from 0.
enum class Loss : uint8_t { kNone, kWakeUp, kCredit, kNotice };
struct Mutation {
  Loss loss = Loss::kNone;
  uint64_t number = 0;
};

class VirtualTime {
 public:
  using Event = std::function<void()>;
  // From now on the engine's clock is this one. There is one of these at a time.
  explicit VirtualTime(uint64_t seed, Mutation mutation = {});
  ~VirtualTime();
  VirtualTime(const VirtualTime&) = delete;

  // A number below `limit`.
  uint64_t Random(uint64_t limit);
  bool Chance(unsigned percent) { return Random(100) < percent; }
  // How long a message takes, or a thread that is woken: short as a rule, now and then long.
  int64_t Delay() { return static_cast<int64_t>(Chance(90) ? Random(20) : Random(400)); }

  // Moments are in us since the beginning. Events of one moment happen in the order of these calls. `alone`: not while
  // a thread that launches operations polls.
  void At(int64_t moment, Event event, bool alone = false);
  void After(int64_t delay, Event event, bool alone = false) { At(now_ + delay, std::move(event), alone); }
  int64_t now() const { return now_; }
  // The next event happens, if there is one until that moment; otherwise that moment comes.
  bool Step(int64_t until);

  // Whether this wake-up, credit or notice of a failure is the one that is lost.
  bool Loses(Loss loss);
  uint64_t count(Loss loss) const { return counts_[static_cast<size_t>(loss)]; }

  // Notes what happens, for the hash of the trace; and prints it if it is shown.
  void Note(const char* what, int process, uint64_t detail);
  void Show() { shown_ = true; }
  uint64_t hash() const { return hash_; }

 private:
  struct Entry {
    int64_t moment;
    uint64_t number;
    bool alone;
    Event event;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.moment != b.moment ? a.moment > b.moment : a.number > b.number;
    }
  };
  // A polling thread lets others run.
  void Yield();

  int64_t now_ = 0;
  uint64_t random_, next_ = 0, hash_ = 0;
  bool polling_ = false, shown_ = false;
  const Mutation mutation_;
  std::array<uint64_t, 4> counts_{};
  std::vector<Entry> queue_;
};

}  // namespace jaxring::test
