// What processes tell each other beside the data: signs of life, failures, and who is gone. Everything that is read
// comes off a wire: sizes, counts and kinds are checked before anything is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/core/stream.h"

namespace jaxring {

// An operation that a process is in, or the last one that it ended.
struct Activity {
  uint64_t key = 0;  // the operation's; 0: it has none yet
  bool running = false;
  uint32_t age_ms = 0;  // since it began if it runs, otherwise since it ended
  std::string what;
};

struct ControlFrame {
  enum class Kind : uint32_t {
    kAlive = 1,    // activities
    kFailed = 2,   // key, code, text: this operation is over for everybody
    kGone = 3,     // process, witness, ending, text: it ended, and not in good order
    kLeaving = 4,  // ending, text: the sender is about to end, or to end the connection, and gives up what it is in
    kGoodbye = 5,  // text: the sender ends in good order, in words; empty: it leaves this epoch of the job
    kMessage = 6,  // text: from Python to Python
    kHalted = 7    // text: everything in flight is over, for everybody, until the job is rebuilt
  };
  Kind kind = Kind::kAlive;
  uint64_t key = 0;
  Code code = Code::kOk;
  int32_t process = -1;
  int32_t witness = -1;  // the process whose own connection with that one ended; -1: the sender
  Ending ending = Ending::kNoWord;
  std::string text;
  std::vector<Activity> activities;

  static constexpr size_t kMaxBytes = 8192, kMaxText = 3072, kMaxActivities = 4, kMaxWhat = 512;
};

// Texts and activities beyond the limits are cut.
std::string EncodeFrame(const ControlFrame& frame);

// Puts the frames of a byte stream together.
class FrameReader {
 public:
  enum class Result { kFrame, kMore, kGarbage };
  void Feed(const char* data, size_t bytes) { pending_.append(data, bytes); }
  // After kGarbage the stream has no meaning any more.
  Result Next(ControlFrame* frame);

 private:
  std::string pending_;
  size_t begin_ = 0;
};

}  // namespace jaxring
