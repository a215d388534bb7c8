#include "network/peers/control_frames.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/crc32c.h"

namespace jaxring {
namespace {

// A frame consists of the length of its body (4 bytes), the body's CRC (4), and the body: its kind (4) and its fields
// in a fixed order. Numbers are little-endian, as on all supported machines.
template <class T>
void Put(std::string* out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out->append(bytes, sizeof value);
}

void PutText(std::string* out, std::string_view text, size_t limit) {
  text = text.substr(0, limit);
  Put(out, static_cast<uint32_t>(text.size()));
  out->append(text);
}

class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  bool Get(T* value) {
    if (rest_.size() < sizeof *value) return false;
    std::memcpy(value, rest_.data(), sizeof *value);
    rest_.remove_prefix(sizeof *value);
    return true;
  }
  // Texts are shown to users: a peer's control characters must not reach a terminal.
  bool GetText(std::string* text, size_t limit) {
    uint32_t size;
    if (!Get(&size) || size > limit || size > rest_.size()) return false;
    text->assign(rest_.substr(0, size));
    std::replace_if(
        text->begin(), text->end(), [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, ' ');
    rest_.remove_prefix(size);
    return true;
  }
  // Times are never negative: a frame with a negative one is malformed.
  bool GetTime(int64_t* value) { return Get(value) && *value >= 0; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

bool KnownFailure(uint32_t code) {
  switch (static_cast<Code>(code)) {
    case Code::kInvalidArgument:
    case Code::kDeadlineExceeded:
    case Code::kResourceExhausted:
    case Code::kFailedPrecondition:
    case Code::kAborted:
    case Code::kInternal:
    case Code::kUnavailable:
    case Code::kDataLoss:
      return true;
    case Code::kOk:
      return false;
  }
  return false;
}

bool KnownLoss(uint32_t ending) {
  switch (static_cast<Ending>(ending)) {
    case Ending::kNoGoodbye:
    case Ending::kUnreachable:
    case Ending::kDamaged:
    case Ending::kReportedError:
    case Ending::kReportedErrorIdle:
      return true;
    case Ending::kGoodbye:
      return false;
  }
  return false;
}

void PutActivity(std::string* out, const Activity& activity) {
  Put(out, activity.key);
  Put(out, uint32_t{activity.running});
  Put(out, activity.age_ms);
  PutText(out, activity.what, ControlFrame::kMaxWhat);
}

bool GetActivity(Fields* fields, Activity* activity) {
  uint32_t running;
  if (!fields->Get(&activity->key) || !fields->Get(&running) || running > 1 || !fields->Get(&activity->age_ms) ||
      !fields->GetText(&activity->what, ControlFrame::kMaxWhat)) {
    return false;
  }
  activity->running = running == 1;
  return true;
}

bool GetSample(Fields* fields, ResourceSample* sample) {
  return fields->GetTime(&sample->at_ns) && fields->GetTime(&sample->cpu_ns) && fields->GetTime(&sample->delayed_ns) &&
         fields->Get(&sample->link_peer) && sample->link_peer >= -1 && sample->link_peer <= INT32_MAX &&
         fields->GetTime(&sample->link_bytes) && fields->GetTime(&sample->link_ns) &&
         fields->GetTime(&sample->resumable) && fields->GetTime(&sample->detours);
}

bool GetHeartbeat(Fields* fields, ControlFrame* frame) {
  uint32_t count;
  if (!fields->Get(&count) || count > ControlFrame::kMaxActivities) return false;
  frame->activities.resize(count);
  for (Activity& activity : frame->activities) {
    if (!GetActivity(fields, &activity)) return false;
  }
  HeartbeatTimes& times = frame->times;
  if (!fields->GetTime(&times.sent) || !fields->GetTime(&times.echoed) || !fields->GetTime(&times.held)) return false;
  if (!GetSample(fields, &frame->sample)) return false;
  if (!fields->Get(&count) || count > ControlFrame::kMaxLaunches) return false;
  frame->launches.resize(count);
  for (LaunchTime& launch : frame->launches) {
    if (!fields->Get(&launch.key) || !fields->Get(&launch.sequence) || !fields->GetTime(&launch.launched_ns) ||
        !fields->Get(&launch.idle_ns) || launch.idle_ns < -1) {
      return false;
    }
  }
  if (!fields->Get(&count) || count > ControlFrame::kMaxBehind) return false;
  frame->behind.resize(count);
  for (Behind& behind : frame->behind) {
    if (!fields->Get(&behind.key) || !fields->Get(&behind.process) || behind.process < 0 ||
        !fields->Get(&behind.seen_ms) || !GetActivity(fields, &behind.last)) {
      return false;
    }
  }
  return true;
}

void PutHeartbeat(std::string* out, const ControlFrame& frame) {
  auto put_some = [out](const auto& items, size_t limit, auto put) {
    const size_t count = std::min(items.size(), limit);
    Put(out, static_cast<uint32_t>(count));
    for (size_t i = 0; i < count; ++i) put(items[i]);
  };
  put_some(frame.activities, ControlFrame::kMaxActivities,
           [out](const Activity& activity) { PutActivity(out, activity); });
  for (int64_t time : {frame.times.sent, frame.times.echoed, frame.times.held}) Put(out, time);
  const ResourceSample& sample = frame.sample;
  for (int64_t value : {sample.at_ns, sample.cpu_ns, sample.delayed_ns, sample.link_peer, sample.link_bytes,
                        sample.link_ns, sample.resumable, sample.detours}) {
    Put(out, value);
  }
  put_some(frame.launches, ControlFrame::kMaxLaunches, [out](const LaunchTime& launch) {
    Put(out, launch.key);
    Put(out, launch.sequence);
    Put(out, launch.launched_ns);
    Put(out, launch.idle_ns);
  });
  put_some(frame.behind, ControlFrame::kMaxBehind, [out](const Behind& behind) {
    Put(out, behind.key);
    Put(out, behind.process);
    Put(out, behind.seen_ms);
    PutActivity(out, behind.last);
  });
}

bool Decode(std::string_view bytes, ControlFrame* frame) {
  *frame = {};
  Fields fields(bytes);
  uint32_t kind;
  if (!fields.Get(&kind)) return false;
  frame->kind = static_cast<ControlFrame::Kind>(kind);
  switch (frame->kind) {
    case ControlFrame::Kind::kAlive:
      return GetHeartbeat(&fields, frame) && fields.empty();
    case ControlFrame::Kind::kFailed: {
      uint32_t code;
      if (!fields.Get(&frame->key) || !fields.Get(&code) || !KnownFailure(code)) return false;
      frame->code = static_cast<Code>(code);
      return fields.GetText(&frame->text, ControlFrame::kMaxText) && fields.empty();
    }
    case ControlFrame::Kind::kGone:
    case ControlFrame::Kind::kLeaving: {
      const bool other = frame->kind == ControlFrame::Kind::kGone;
      uint32_t ending;
      if (other && (!fields.Get(&frame->process) || frame->process < 0)) return false;
      if (other && (!fields.Get(&frame->witness) || frame->witness < -1)) return false;
      if (!fields.Get(&ending) || !KnownLoss(ending)) return false;
      frame->ending = static_cast<Ending>(ending);
      return fields.GetText(&frame->text, ControlFrame::kMaxText) && fields.empty();
    }
    case ControlFrame::Kind::kMessage:
    case ControlFrame::Kind::kHalted:
    case ControlFrame::Kind::kGoodbye:
      return fields.GetText(&frame->text, ControlFrame::kMaxText) && fields.empty();
  }
  return false;
}

}  // namespace

ControlFrame FailureFrame(uint64_t key, const Status& failure) {
  ControlFrame frame;
  frame.kind = ControlFrame::Kind::kFailed;
  frame.key = key;
  frame.code = failure.code;
  frame.text = failure.message;
  return frame;
}

std::string EncodeFrame(const ControlFrame& frame) {
  std::string body;
  Put(&body, static_cast<uint32_t>(frame.kind));
  switch (frame.kind) {
    case ControlFrame::Kind::kAlive:
      PutHeartbeat(&body, frame);
      break;
    case ControlFrame::Kind::kFailed:
      Put(&body, frame.key);
      Put(&body, static_cast<uint32_t>(frame.code));
      PutText(&body, frame.text, ControlFrame::kMaxText);
      break;
    case ControlFrame::Kind::kGone:
    case ControlFrame::Kind::kLeaving:
      if (frame.kind == ControlFrame::Kind::kGone) {
        Put(&body, frame.process);
        Put(&body, frame.witness);
      }
      Put(&body, static_cast<uint32_t>(frame.ending));
      PutText(&body, frame.text, ControlFrame::kMaxText);
      break;
    case ControlFrame::Kind::kMessage:
    case ControlFrame::Kind::kHalted:
    case ControlFrame::Kind::kGoodbye:
      PutText(&body, frame.text, ControlFrame::kMaxText);
      break;
  }
  std::string out;
  Put(&out, static_cast<uint32_t>(body.size()));
  Put(&out, Crc32c(body.data(), body.size()));
  return out + body;
}

FrameReader::Result FrameReader::Next(ControlFrame* frame) {
  const std::string_view rest = std::string_view(pending_).substr(begin_);
  uint32_t bytes = 0, sum = 0;
  constexpr size_t kBefore = sizeof bytes + sizeof sum;
  if (rest.size() >= sizeof bytes) {
    std::memcpy(&bytes, rest.data(), sizeof bytes);
    if (bytes > ControlFrame::kMaxBytes) return Result::kGarbage;
  }
  if (rest.size() < kBefore + bytes) {
    pending_.erase(0, begin_);
    begin_ = 0;
    return Result::kMore;
  }
  begin_ += kBefore + bytes;
  std::memcpy(&sum, rest.data() + sizeof bytes, sizeof sum);
  const std::string_view body = rest.substr(kBefore, bytes);
  return sum == Crc32c(body.data(), bytes) && Decode(body, frame) ? Result::kFrame : Result::kGarbage;
}

}  // namespace jaxring
