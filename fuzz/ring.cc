// Fuzzes a ring in shared memory whose peer writes any bytes. Neither end may access memory outside the ring, and the
// receiver must report no message longer than a slot.
#include "transport/core/ring.h"

#include <memory>
#include <vector>

#include "input.h"

using namespace jaxring;

namespace {

uint64_t Read(const char* payload, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; ++i) sum += static_cast<uint8_t>(payload[i]);
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const RingShape shape = input.Number<uint8_t>() & 1 ? RingShape{4, 64, sizeof(SlotHeader)} : RingShape{2, 128, 64};
  const size_t bytes = (shape.bytes() + 63) / 64 * 64;
  std::unique_ptr<char, decltype(&std::free)> base(static_cast<char*>(std::aligned_alloc(64, bytes)), &std::free);
  std::memset(base.get(), 0, bytes);
  const RingMemory memory(base.get(), shape);
  RingSender sender(memory, nullptr);
  RingReceiver receiver(memory, nullptr);
  std::vector<uint64_t> held;
  volatile uint64_t sum = 0;
  uint64_t position;
  MessageId id{};
  const char* payload;
  Message message;
  while (!input.empty()) {
    const uint8_t what = input.Number<uint8_t>();
    switch (what % 8) {
      case 0: {  // the peer writes bytes
        const size_t at = input.Number<uint16_t>() % shape.bytes();
        const std::string_view part = input.Bytes(std::min<size_t>(what / 8 + 1, shape.bytes() - at));
        std::memcpy(base.get() + at, part.data(), part.size());
        break;
      }
      case 1: {  // the peer writes a valid flag
        const uint64_t slot = input.Number<uint8_t>();
        SlotHeader& header = memory.header(slot);
        header.header.bytes = input.Number<uint32_t>();
        header.flag = slot + 1;
        break;
      }
      case 2:
        if (!receiver.FindNext(&position, &id, &payload, &message)) break;
        // The engine compares the length with the expected one, which is at most a slot's.
        if (message.bytes <= shape.payload_bytes) sum = sum + Read(payload, message.bytes);
        held.push_back(position);
        break;
      case 3:
        id = {what / 8u, 0, 0, 0, 0};
        if (receiver.Find(id, &position, &payload, &message)) held.push_back(position);
        break;
      case 4:
      case 5:
        if (held.empty()) break;
        what % 8 == 4 ? receiver.Release(held.back()) : receiver.Unclaim(held.back());
        held.pop_back();
        break;
      case 6:
        receiver.SpillIfFull(
            [&sum](const MessageId&, const char* from, Message spilled) { sum = sum + Read(from, spilled.bytes); });
        break;
      case 7:
        if (!sender.Reserve(&position)) break;
        std::memset(sender.payload(position), what, shape.payload_bytes);
        sender.Publish(position, id, {shape.payload_bytes, what, 0});
        break;
    }
  }
  return 0;
}
