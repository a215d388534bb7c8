// Fuzzes frames of the control connection: any bytes, in pieces of any length. A decoded frame must be equal after it
// is encoded and decoded again.
#include "network/peers/control_frames.h"

#include "input.h"

using namespace jaxring;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t piece = 1 + input.Number<uint8_t>();
  FrameReader reader;
  ControlFrame frame;
  while (!input.empty()) {
    const std::string_view part = input.Bytes(piece);
    reader.Feed(part.data(), part.size());
    FrameReader::Result result;
    while ((result = reader.Next(&frame)) == FrameReader::Result::kFrame) {
      FUZZ_CHECK(frame.text.size() <= ControlFrame::kMaxText);
      FUZZ_CHECK(frame.activities.size() <= ControlFrame::kMaxActivities);
      const std::string said = EncodeFrame(frame);
      FUZZ_CHECK(said.size() <= ControlFrame::kMaxBytes + 4);
      FrameReader again;
      ControlFrame decoded;
      again.Feed(said.data(), said.size());
      FUZZ_CHECK(again.Next(&decoded) == FrameReader::Result::kFrame);
      FUZZ_CHECK(EncodeFrame(decoded) == said);
    }
    if (result == FrameReader::Result::kGarbage) break;
  }
  return 0;
}
