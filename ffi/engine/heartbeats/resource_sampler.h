// Samples of what this process spends CPU time and TCP connections on, for its heartbeats and its record.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "network/peers/heartbeat_data.h"
#include "transport/core/links.h"
#include "transport/core/send_totals.h"

namespace jaxring {

class ResourceSampler {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Reads how long threads have waited for CPUs, if it is time for that. It reads a file for each thread, so the thread
  // that moves TCP's bytes leaves it to another one. Where none calls this, all samples have what the first one has
  // read.
  void ReadDelays(Time now);
  // A sample with the slowest connection of `links` since the one before, if it is time for one. Reads the delays
  // itself where that has not been done yet: the first sample would otherwise say that no thread had ever waited.
  // `paths` returns what Paths::Count says, whose locks are those of writers: it is called for a sample only.
  std::optional<ResourceSample> Sample(Time now, const Links& links,
                                       const std::function<std::pair<int, int>()>& paths = nullptr);
  const ResourceSample& last() const { return last_; }

 private:
  void AddSlowestLink(const Links& links);

  std::atomic<Time> delays_read_at_{Time{}};
  std::atomic<int64_t> delayed_ns_{-1};  // at `delays_read_at_`; -1: not read yet
  // These are the sampling thread's alone.
  Time sampled_at_{};                               // when it took its last sample
  std::map<std::pair<int, int>, SendTotals> sent_;  // by peer and channel at `sampled_at_`
  ResourceSample last_;
};

}  // namespace jaxring
