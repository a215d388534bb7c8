#include "engine/heartbeats/resource_sampler.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <tuple>

namespace jaxring {
namespace {

constexpr auto kSampleEvery = std::chrono::milliseconds(500);
constexpr size_t kMaxConnections = 64;
// Fewer bytes on a connection say nothing of what it can carry.
constexpr int64_t kBulkBytes = 256 * 1024;

// How long this process's living threads have been ready to run without a CPU. A quota of its cgroup counts, too.
// Reads a file for each thread: some 5 ms with 500 threads, during which the poller's thread would move no TCP bytes.
int64_t DelayedNs() {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return 0;
  int64_t sum = 0;
  while (const dirent* entry = readdir(threads)) {
    if (entry->d_name[0] == '.') continue;
    char path[64], text[96];
    std::snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", entry->d_name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;  // it has ended
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) continue;
    text[n] = '\0';
    long long running = 0, delayed = 0;
    if (std::sscanf(text, "%lld %lld", &running, &delayed) == 2) sum += delayed;
  }
  closedir(threads);
  return sum;
}

int64_t CpuNs() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

void ResourceSampler::ReadDelays(Time now) {
  if (now - delays_read_at_.load(std::memory_order_relaxed) < kSampleEvery) return;
  delays_read_at_.store(now, std::memory_order_relaxed);
  delayed_ns_.store(DelayedNs(), std::memory_order_relaxed);
}

std::optional<ResourceSample> ResourceSampler::Sample(Time now, const Links& links,
                                                      const std::function<std::pair<int, int>()>& paths) {
  if (now - sampled_at_ < kSampleEvery) return std::nullopt;
  sampled_at_ = now;
  last_ = {};
  last_.at_ns = Nanoseconds(now);
  last_.cpu_ns = CpuNs();
  if (delayed_ns_.load(std::memory_order_relaxed) < 0) delayed_ns_.store(DelayedNs(), std::memory_order_relaxed);
  last_.delayed_ns = delayed_ns_.load(std::memory_order_relaxed);
  if (paths) std::tie(last_.resumable, last_.detours) = paths();
  AddSlowestLink(links);
  return last_;
}

void ResourceSampler::AddSlowestLink(const Links& links) {
  auto sent = links.Totals(kMaxConnections);
  std::map<int, SendTotals> by_peer;
  for (const auto& [key, totals] : sent) {
    const auto known = sent_.find(key);
    if (known == sent_.end()) continue;
    SendTotals& sum = by_peer[key.first];
    const SendTotals since = Between(known->second, totals);
    sum.bytes += since.bytes;
    // Channels to a peer send at the same time.
    sum.busy_ns = std::max(sum.busy_ns, since.busy_ns);
  }
  for (const auto& [peer, sum] : by_peer) {
    if (sum.bytes < kBulkBytes || sum.busy_ns <= 0) continue;
    const bool slower =
        last_.link_peer < 0 || static_cast<double>(sum.bytes) * static_cast<double>(last_.link_ns) <
                                   static_cast<double>(last_.link_bytes) * static_cast<double>(sum.busy_ns);
    if (!slower) continue;
    last_.link_peer = peer;
    last_.link_bytes = sum.bytes;
    last_.link_ns = sum.busy_ns;
  }
  sent_ = std::move(sent);
}

}  // namespace jaxring
