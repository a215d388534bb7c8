// The Simple protocol: messages are plain bytes, and a counter of the slot reports each whole message.
//
// sender: writes the slot; barrier; one thread stores the counter with release at system scope.
// receiver: one thread loads the counter with acquire; barrier; all read.
#pragma once

#include "cuda/device/packs.h"

namespace jaxring::cuda {

struct Simple {
  static constexpr Protocol kProtocol = Protocol::kSimple;
  static constexpr bool kCounts = true;   // the receiver waits for the counter
  static constexpr bool kSlots = true;    // an operand may be a message
  static constexpr bool kPartial = true;  // an operand may be accumulators
  static constexpr bool kBulk = true;     // slots hold elements as they are
  static constexpr uint32_t kUnit = 1;    // packs that are loaded and stored together
  static constexpr int PacksOf(int widen) { return widen < 2 ? 4 : 4 / widen; }
  template <int kPacks>
  using Map = RunsOfPacks<kPacks>;

  // kVectors of each pack, to `to[u * kVectors + v]`; false if it gave up waiting.
  template <int kPacks, int kVectors>
  JAXRING_DEVICE static bool Load(const Lane&, const Operand& message, uint32_t begin, uint32_t end, Vec* to) {
    JAXRING_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      const uint32_t pack = Map<kPacks>::Pack(begin, u);
      JAXRING_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        if (pack < end) to[u * kVectors + v] = LoadSlot(message.at + VectorOffset<kVectors>(pack, v));
      }
    }
    return true;
  }

  template <int kPacks, int kVectors>
  JAXRING_DEVICE static void Store(const Lane&, const Operand& message, uint32_t begin, uint32_t end, const Vec* from) {
    JAXRING_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      const uint32_t pack = Map<kPacks>::Pack(begin, u);
      JAXRING_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        if (pack < end) StoreFar(message.at + VectorOffset<kVectors>(pack, v), from[u * kVectors + v]);
      }
    }
  }

  JAXRING_DEVICE static bool Cleans(const Args&, uint64_t) { return false; }
  JAXRING_DEVICE static void Clean(const Args&, const Operand&, uint32_t, uint32_t) {}
};

// For kernels that use their block's memory otherwise than for bulk copies.
struct Slots : Simple {
  static constexpr bool kBulk = false;
};

// For kernels whose operands are all elements in the memory of ranks.
struct InPlace : Simple {
  static constexpr bool kSlots = false;
  static constexpr bool kPartial = false;
};

}  // namespace jaxring::cuda
