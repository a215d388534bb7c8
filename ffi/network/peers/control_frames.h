// The frames of control connections: heartbeats, failures, reports of processes that are gone, and control messages of
// Python. Sizes, counts and kinds of received frames are checked before they are used.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "network/peers/heartbeat_data.h"
#include "transport/core/stream.h"

namespace jaxring {

// An operation that a process executes, or the last one that it finished.
struct Activity {
  uint64_t key = 0;  // the operation's key; 0: it has none yet
  bool running = false;
  uint32_t age_ms = 0;  // since it began if it runs, otherwise since it ended
  std::string what;
};

// A process that has not begun an operation that others wait in.
struct Behind {
  uint64_t key = 0;  // of that operation
  int32_t process = -1;
  uint32_t seen_ms = 0;  // since a process that is connected with it saw that
  Activity last;         // what it did last; without key and text: nothing yet
};

// An age for Activity, 0 if the caller read its clock before the operation began. UINT32_MAX: 49 days or more.
inline uint32_t AgeMs(std::chrono::nanoseconds age) {
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, UINT32_MAX));
}

struct ControlFrame {
  enum class Kind : uint32_t {
    kAlive = 1,    // a heartbeat; activities, times, sample, launches, behind
    kFailed = 2,   // key, code, text: this operation has failed in all processes
    kGone = 3,     // process, witness, ending, text: that process ended without a goodbye
    kLeaving = 4,  // ending, text: the sender abandons its operations, and is about to end or to close the connection
    kGoodbye = 5,  // text: how the sender ends in good order; empty: it leaves this epoch of the job
    kMessage = 6,  // text: a control message from Python to Python
    kHalted = 7    // text: all operations in flight fail in all processes, until the job is rebuilt
  };
  Kind kind = Kind::kAlive;
  uint64_t key = 0;
  Code code = Code::kOk;
  int32_t process = -1;
  int32_t witness = -1;  // the process whose own connection with `process` ended; -1: the sender
  Ending ending = Ending::kNoGoodbye;
  std::string text;
  std::vector<Activity> activities;
  // Only heartbeats have these.
  HeartbeatTimes times;
  ResourceSample sample;
  std::vector<LaunchTime> launches;
  std::vector<Behind> behind;

  static constexpr size_t kMaxBytes = 8192, kMaxText = 3072, kMaxActivities = 4, kMaxWhat = 512;
  static constexpr size_t kMaxLaunches = 8, kMaxBehind = 4;
};

// Tells that an operation has failed.
ControlFrame FailureFrame(uint64_t key, const Status& failure);

// Truncates texts and activities to the limits.
std::string EncodeFrame(const ControlFrame& frame);

// Splits a byte stream into frames.
class FrameReader {
 public:
  enum class Result { kFrame, kMore, kGarbage };
  void Feed(const char* data, size_t bytes) { pending_.append(data, bytes); }
  // After kGarbage the rest of the stream cannot be decoded.
  Result Next(ControlFrame* frame);

 private:
  std::string pending_;
  size_t begin_ = 0;
};

}  // namespace jaxring
