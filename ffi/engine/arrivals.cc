// What heartbeats say of those that hold a job up: how the clocks of two processes differ, when each launched the same
// operation, and what a process spends CPU time and links on. Python judges it (jaxring/_stragglers.py).
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iterator>

#include "engine/engine.h"

namespace jaxring {
namespace {

constexpr auto kSampleEvery = std::chrono::milliseconds(500);
constexpr size_t kMaxSharedLaunches = 512, kMaxSamples = 64, kMaxConnections = 64;
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

void Engine::SampleDelays(Clock::time_point now) {
  if (now - delays_sampled_at_.load(std::memory_order_relaxed) < kSampleEvery) return;
  {
    std::lock_guard lock(peers_mutex_);
    if (peers_.empty()) return;
  }
  delays_sampled_at_.store(now, std::memory_order_relaxed);
  delayed_ns_.store(DelayedNs(), std::memory_order_relaxed);
}

void Engine::SampleResources(Clock::time_point now) {
  if (now - sampled_at_ < kSampleEvery) return;
  {
    std::lock_guard lock(peers_mutex_);
    if (peers_.empty()) return;
  }
  sampled_at_ = now;
  ResourceSample sample;
  sample.at_ns = Nanoseconds(now);
  sample.cpu_ns = CpuNs();
  sample.delayed_ns = delayed_ns_.load(std::memory_order_relaxed);
  SampleLinks(&sample);
  last_sample_ = sample;
  recorder_.Keep(sample);
  std::lock_guard lock(peers_mutex_);
  own_samples_.push_back(sample);
  if (own_samples_.size() > kMaxSamples) own_samples_.pop_front();
}

void Engine::SampleLinks(ResourceSample* sample) {
  auto sent = links_.Totals(kMaxConnections);
  std::map<int, SendTotals> by_peer;
  for (const auto& [key, totals] : sent) {
    const auto known = sent_.find(key);
    if (known == sent_.end()) continue;
    SendTotals& sum = by_peer[key.first];
    sum.bytes += std::max<int64_t>(0, totals.bytes - known->second.bytes);
    // Channels to a peer send at the same time.
    sum.busy_ns = std::max(sum.busy_ns, totals.busy_ns - known->second.busy_ns);
  }
  for (const auto& [peer, sum] : by_peer) {
    if (sum.bytes < kBulkBytes || sum.busy_ns <= 0) continue;
    const bool slower =
        sample->link_peer < 0 || static_cast<double>(sum.bytes) * static_cast<double>(sample->link_ns) <
                                     static_cast<double>(sample->link_bytes) * static_cast<double>(sum.busy_ns);
    if (!slower) continue;
    sample->link_peer = peer;
    sample->link_bytes = sum.bytes;
    sample->link_ns = sum.busy_ns;
  }
  sent_ = std::move(sent);
}

void Engine::OnHeartbeat(int process, const ControlFrame& frame) {
  Peer& peer = peers_[process];
  const int64_t here = Nanoseconds(peer.said_at);
  peer.their_sent_ns = frame.times.sent;
  peer.clock.Compare(frame.times, here);
  // With each heartbeat, because the error grows while there is no better comparison.
  if (const ClockOffset clock = peer.clock.At(here); clock.error_ns >= 0) recorder_.Keep(process, clock);
  if (frame.sample.at_ns != 0 && (peer.samples.empty() || peer.samples.back().at_ns < frame.sample.at_ns)) {
    peer.samples.push_back(frame.sample);
    if (peer.samples.size() > kMaxSamples) peer.samples.pop_front();
  }
  for (const LaunchTime& theirs : frame.launches) {
    // While a launch is among the last ones of its process, at most twice as many are heard of.
    const size_t recent = std::min(peer.shared_launches.size(), 2 * ControlFrame::kMaxLaunches);
    const bool heard = std::any_of(
        peer.shared_launches.rbegin(), std::next(peer.shared_launches.rbegin(), static_cast<ptrdiff_t>(recent)),
        [&](const SharedLaunch& launch) {
          return launch.theirs.key == theirs.key && launch.theirs.sequence == theirs.sequence;
        });
    if (heard) continue;
    const auto own = recorder_.FindLaunch(theirs.key, theirs.sequence);
    if (!own) continue;
    peer.shared_launches.push_back({own->second, own->first, theirs});
    if (peer.shared_launches.size() > kMaxSharedLaunches) peer.shared_launches.pop_front();
  }
}

std::vector<Arrivals> Engine::TakeArrivals() {
  std::vector<Arrivals> found(1);
  found.front().process = -1;
  std::lock_guard lock(peers_mutex_);
  const int64_t now = Nanoseconds(Clock::now());
  found.front().samples.assign(own_samples_.begin(), own_samples_.end());
  own_samples_.clear();
  for (auto& [process, peer] : peers_) {
    found.push_back({process,
                     peer.clock.At(now),
                     {peer.shared_launches.begin(), peer.shared_launches.end()},
                     {peer.samples.begin(), peer.samples.end()}});
    peer.shared_launches.clear();
    peer.samples.clear();
  }
  return found;
}

}  // namespace jaxring
