// What the processes of a job tell each other with their heartbeats so that those that hold the others up are found:
// the times of their clocks, when they launched operations, and what they spent CPU time and links on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace jaxring {

inline int64_t Nanoseconds(std::chrono::nanoseconds time) { return time.count(); }
inline int64_t Nanoseconds(std::chrono::steady_clock::time_point moment) {
  return Nanoseconds(moment.time_since_epoch());
}

// Moments of a heartbeat in ns. The receiver compares the two clocks by them, as NTP does.
struct HeartbeatTimes {
  int64_t sent = 0;    // by the sender's clock
  int64_t echoed = 0;  // `sent` of the latest heartbeat from the receiver, by the receiver's clock; 0: none
  int64_t held = 0;    // since that one arrived
};

// Another process's clock less this one's. The true value is at most `error_ns` away; -1: not known.
struct ClockOffset {
  int64_t offset_ns = 0, error_ns = -1;
};

// The launch of an operation, by the clock of the process.
struct LaunchTime {
  uint64_t key = 0, sequence = 0;
  int64_t launched_ns = 0;
  // Since the operation before it ended: what the process did outside of collectives. -1: not known.
  int64_t idle_ns = -1;
};

// How many samples of a process are kept until they are taken.
inline constexpr size_t kMaxSamples = 64;

// Sums since the process began, sampled with its heartbeats; and its slowest connection since the sample before.
struct ResourceSample {
  int64_t at_ns = 0;       // 0: no sample
  int64_t cpu_ns = 0;      // CPU time of all threads
  int64_t delayed_ns = 0;  // in which threads were ready to run and had no CPU, summed over those that live
  // The process to which the slowest TCP connection with bulk data leads, bytes that its kernel acknowledged, and the
  // time in which some were under way although the peer had room.
  int64_t link_peer = -1;  // -1: no such connection
  int64_t link_bytes = 0, link_ns = 0;
  // How many of the connections that it has dialled can go on over another path, and how many of these do so now, or
  // are lost.
  int64_t resumable = 0, detours = 0;
};

}  // namespace jaxring
