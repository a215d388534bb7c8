// Chooses between ordinary and non-temporal stores to memory that another thread or process reads.
//
// Where writer and reader share a cache, ordinary stores are better: the reader finds the data there (an all-reduce of
// 1 to 16 MiB between two processes took 1.35 to 1.7 times as long with non-temporal ones). Where they do not, each
// ordinary store to a line that the other has read waits until that copy has been given up: 2.3 GB/s were measured
// between two cores of an AMD EPYC where non-temporal stores, which replace a line unseen, did 20. The same all-reduce
// took 3 to 4.6 times as long with ordinary ones. Nothing tells which it is, and threads and virtual CPUs move. So both
// are timed: every kEvery the other kind has kProbes writes, and takes over where it is that much faster.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace jaxring {

// Threads may use it together. Two that do so at once may time a probe less or more, and nothing else.
class StoreChoice {
 public:
  // Shorter writes are neither timed nor non-temporal.
  static constexpr uint64_t kLeastBytes = 16 << 10;
  static constexpr Clock::duration kEvery = std::chrono::milliseconds(100);
  static constexpr int kProbes = 2;
  // Ordinary stores that are timed before the first probe, more than a ring has slots: fresh pages are slow to write.
  static constexpr int kFirst = 16;
  // Non-temporal stores take over where ordinary ones take so many times their time, and give way where these take less
  // than so many times. The reader, whose time is not seen, is never slower by ordinary ones.
  static constexpr float kSlow = 2.0F, kFast = 1.6F;

  // Whether the next write is to be non-temporal.
  bool Streams(Clock::time_point now) {
    const bool streaming = streaming_.load(std::memory_order_relaxed);
    if (timed_.load(std::memory_order_relaxed) < kFirst) return streaming;
    if (probes_.load(std::memory_order_relaxed) == 0) {
      if (now < next_.load(std::memory_order_relaxed)) return streaming;
      next_.store(now + kEvery, std::memory_order_relaxed);
      other_.store(kUnknown, std::memory_order_relaxed);
      probes_.store(kProbes, std::memory_order_relaxed);
    }
    return !streaming;
  }

  // Tells what a write of at least `kLeastBytes` took. `bytes`: also those that it read, and wrote elsewhere.
  void Wrote(bool streamed, uint64_t bytes, Clock::duration took) {
    const float each = static_cast<float>(took.count()) / static_cast<float>(bytes);
    if (streamed == streaming_.load(std::memory_order_relaxed)) {
      // The least of the last twenty or so: what is slower was interrupted, or shared its core with another thread.
      const float before = own_.load(std::memory_order_relaxed);
      own_.store(std::min(each, before + before / 32), std::memory_order_relaxed);
      const int timed = timed_.load(std::memory_order_relaxed);
      if (timed < kFirst) timed_.store(timed + 1, std::memory_order_relaxed);
      return;
    }
    other_.store(std::min(each, other_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
    const int left = probes_.load(std::memory_order_relaxed) - 1;
    if (left >= 0) probes_.store(left, std::memory_order_relaxed);
    if (left == 0) Judge(!streamed);
  }

 private:
  static constexpr float kUnknown = std::numeric_limits<float>::max();

  void Judge(bool streaming) {
    const float own = own_.load(std::memory_order_relaxed), other = other_.load(std::memory_order_relaxed);
    if (streaming ? other >= kFast * own : own <= kSlow * other) return;
    own_.store(other, std::memory_order_relaxed);
    streaming_.store(!streaming, std::memory_order_relaxed);
  }

  std::atomic<bool> streaming_ = false;
  std::atomic<int> timed_ = 0, probes_ = 0;               // `probes_`: those that the other kind still has
  std::atomic<float> own_ = kUnknown, other_ = kUnknown;  // clock ticks per byte
  std::atomic<Clock::time_point> next_ = Clock::time_point();
};

// One write, of so many bytes, whose kind a `StoreChoice` chooses by timing it. Without a choice, or if it is short, it
// is an ordinary one.
class ChosenWrite {
 public:
  ChosenWrite(StoreChoice* stores, uint64_t bytes)
      : stores_(bytes < StoreChoice::kLeastBytes ? nullptr : stores),
        begin_(stores_ == nullptr ? Clock::time_point() : Clock::now()),
        streams_(stores_ != nullptr && stores_->Streams(begin_)) {}
  bool chosen() const { return stores_ != nullptr; }
  bool streams() const { return streams_; }
  // Tells that it has ended. `bytes`: as of StoreChoice::Wrote.
  void End(uint64_t bytes) {
    if (stores_ != nullptr) stores_->Wrote(streams_, bytes, Clock::now() - begin_);
  }

 private:
  StoreChoice* const stores_;
  const Clock::time_point begin_;
  const bool streams_;
};

}  // namespace jaxring
