#include "tests/simulation/virtual_time.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace jaxring::test {
namespace {

VirtualTime* current = nullptr;

uint64_t Mix(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

VirtualTime::VirtualTime(uint64_t seed, Mutation mutation) : random_(Mix(seed)), mutation_(mutation) {
  current = this;
  Clock::source = []() noexcept {
    // Not the zero of the clock, which stands for "never" here and there.
    return Clock::time_point(std::chrono::hours(1) + std::chrono::microseconds(current->now_));
  };
  Clock::yield = [] { current->Yield(); };
}

VirtualTime::~VirtualTime() {
  Clock::source = &std::chrono::steady_clock::now;
  Clock::yield = [] { sched_yield(); };
  current = nullptr;
}

uint64_t VirtualTime::Random(uint64_t limit) {
  random_ += 0x9E3779B97F4A7C15ull;
  return Mix(random_) % limit;
}

void VirtualTime::At(int64_t moment, Event event, bool alone) {
  queue_.push_back({std::max(moment, now_), next_++, alone, std::move(event)});
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

bool VirtualTime::Step(int64_t until) {
  while (!queue_.empty() && queue_.front().moment <= until) {
    std::pop_heap(queue_.begin(), queue_.end(), Later());
    Entry entry = std::move(queue_.back());
    queue_.pop_back();
    now_ = std::max(now_, entry.moment);
    if (entry.alone && polling_) {
      At(now_ + 1, std::move(entry.event), true);
      if (now_ + 1 > until) break;
      continue;
    }
    entry.event();
    return true;
  }
  now_ = std::max(now_, until);
  return false;
}

void VirtualTime::Yield() {
  polling_ = true;
  const int64_t until = now_ + 1;
  while (Step(until)) {
  }
  polling_ = false;
}

bool VirtualTime::Loses(Loss loss) {
  const uint64_t number = counts_[static_cast<size_t>(loss)]++;
  return mutation_.loss == loss && mutation_.number == number;
}

void VirtualTime::Note(const char* what, int process, uint64_t detail) {
  uint64_t begin = 0;
  for (size_t i = 0; i < sizeof begin && what[i] != '\0'; ++i) begin = begin << 8 | static_cast<unsigned char>(what[i]);
  hash_ = Mix(hash_ ^ begin) + static_cast<uint64_t>(now_);
  hash_ = Mix(hash_ ^ (static_cast<uint64_t>(process) << 56) ^ detail);
  if (shown_) {
    std::printf("%9lld us: process %d: %s %llu\n", static_cast<long long>(now_), process, what,
                static_cast<unsigned long long>(detail));
  }
}

}  // namespace jaxring::test
