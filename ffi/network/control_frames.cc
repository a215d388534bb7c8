#include "network/control_frames.h"

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

bool Decode(std::string_view bytes, ControlFrame* frame) {
  *frame = {};
  Fields fields(bytes);
  uint32_t kind;
  if (!fields.Get(&kind)) return false;
  frame->kind = static_cast<ControlFrame::Kind>(kind);
  switch (frame->kind) {
    case ControlFrame::Kind::kAlive: {
      uint32_t count;
      if (!fields.Get(&count) || count > ControlFrame::kMaxActivities) return false;
      for (uint32_t i = 0; i < count; ++i) {
        Activity activity;
        uint32_t running;
        if (!fields.Get(&activity.key) || !fields.Get(&running) || running > 1 || !fields.Get(&activity.age_ms) ||
            !fields.GetText(&activity.what, ControlFrame::kMaxWhat)) {
          return false;
        }
        activity.running = running == 1;
        frame->activities.push_back(std::move(activity));
      }
      return fields.empty();
    }
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

std::string EncodeFrame(const ControlFrame& frame) {
  std::string body;
  Put(&body, static_cast<uint32_t>(frame.kind));
  switch (frame.kind) {
    case ControlFrame::Kind::kAlive: {
      const size_t count = std::min(frame.activities.size(), ControlFrame::kMaxActivities);
      Put(&body, static_cast<uint32_t>(count));
      for (size_t i = 0; i < count; ++i) {
        const Activity& activity = frame.activities[i];
        Put(&body, activity.key);
        Put(&body, uint32_t{activity.running});
        Put(&body, activity.age_ms);
        PutText(&body, activity.what, ControlFrame::kMaxWhat);
      }
      break;
    }
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
