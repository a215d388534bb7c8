// Fuzzes the TCP stream: any bytes, in pieces of any length, into the rings of a link whose lanes read now and then.
#include "transport/core/wire.h"

#include <memory>
#include <vector>

#include "input.h"

using namespace jaxring;

namespace {

// A ring in its own allocation, so that AddressSanitizer sees accesses outside it.
struct Ring {
  explicit Ring(RingShape shape)
      : bytes(static_cast<char*>(std::aligned_alloc(64, (shape.bytes() + 63) / 64 * 64)), &std::free),
        memory((std::memset(bytes.get(), 0, shape.bytes()), bytes.get()), shape),
        reader(memory, nullptr) {}
  std::unique_ptr<char, decltype(&std::free)> bytes;
  RingMemory memory;
  RingReceiver reader;

  // Reads up to `count` messages.
  void Drain(int count) {
    uint64_t position;
    MessageId id;
    const char* payload;
    Message message;
    while (count-- > 0 && reader.FindNext(&position, &id, &payload, &message)) {
      FUZZ_CHECK(message.bytes <= memory.shape().payload_bytes);
      volatile char last = message.bytes == 0 ? 0 : payload[message.bytes - 1];
      static_cast<void>(last);
      reader.Release(position);
    }
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  Ring ll({4, 64, sizeof(SlotHeader)}), simple({2, 256, 64});
  WireReader reader(ll.memory, simple.memory, nullptr);
  std::vector<char> pending;
  while (!input.empty()) {
    const uint8_t piece = input.Number<uint8_t>();
    // As the pump does: directly into the slot, or through its buffer.
    if (pending.empty() && reader.missing() > 0 && (piece & 128)) {
      const std::string_view part = input.Bytes(std::min<size_t>(reader.missing(), 1 + (piece & 127)));
      std::memcpy(reader.place(), part.data(), part.size());
      reader.Filled(part.size());
      continue;
    }
    if (pending.empty() && reader.missing() == 0 && (piece & 64)) {  // any header, with a valid seal
      auto header = input.Number<WireHeader>();
      header.seal = header.Seal(reader.number());
      const char* bytes = reinterpret_cast<const char*>(&header);
      pending.assign(bytes, bytes + sizeof header);
    }
    const std::string_view part = input.Bytes(1 + (piece & 63));
    pending.insert(pending.end(), part.begin(), part.end());
    for (bool full = true; full;) {
      size_t used = 0;
      const WireReader::Result result = reader.Take(pending.data(), pending.size(), &used);
      FUZZ_CHECK(used <= pending.size());
      if (result == WireReader::Result::kGarbage) return 0;
      pending.erase(pending.begin(), pending.begin() + static_cast<ptrdiff_t>(used));
      full = result == WireReader::Result::kFull;
      FUZZ_CHECK(full || pending.size() < sizeof(WireHeader));
      if (full) {
        ll.Drain(1 + piece % 3);
        simple.Drain(1 + piece % 2);
      }
    }
  }
  return 0;
}
