// The LL (low latency) protocol: every 8 bytes are 4 bytes of data and 4 of flag in one store, so a reader that sees
// the flag has the data. A vector takes two lines of 16 bytes: {data, flag, data, flag}.
//
// The flag is 16 bits of the message's number, from 1, and 16 of its sender's Args::Call::number, so that a reader can
// tell which call the sender is in. Slots are zero at first, and messages leave the lines that they do not use
// unchanged, so a slot must never hold a future flag by chance. Therefore the first messages of a communicator, and
// those after every 2^15, write all lines of their slots, and no flag in a slot is older than that.
#pragma once

#include "cuda/device/packs.h"
#include "cuda/device/tables.h"

namespace jaxring::cuda {

struct LL {
  static constexpr Protocol kProtocol = Protocol::kLL;
  static constexpr bool kCounts = false;
  static constexpr bool kSlots = true;    // an operand may be a message
  static constexpr bool kPartial = true;  // an operand may be accumulators
  static constexpr bool kBulk = false;
  static constexpr uint32_t kUnit = 1;
  // Packs that a thread handles at a time, by the width of accumulators; 0: without a reduction.
  static constexpr int PacksOf(int widen) { return widen < 2 ? 2 : 1; }
  template <int kPacks>
  using Map = RunsOfPacks<kPacks>;

  static constexpr uint32_t kNumberMask = 0xffff;

  JAXRING_DEVICE static uint32_t FlagOf(uint64_t number, uint32_t call) {
    return (static_cast<uint32_t>(number + 1) & kNumberMask) | Stamp::ShortCall(call) << 16;
  }
  // For lines that hold the flag of this message or of one less than 2^16 - 1 before.
  JAXRING_DEVICE static bool OfOtherCall(uint32_t seen, uint32_t flag) {
    return seen != flag && ((seen ^ flag) & kNumberMask) == 0;
  }

  JAXRING_DEVICE static Vec Line(const Vec& data, int half, uint32_t flag) {
    return {{data.w[2 * half], flag, data.w[2 * half + 1], flag}};
  }

  template <int kPacks, int kVectors>
  JAXRING_DEVICE static bool Load(const Lane& lane, const Operand& message, uint32_t begin, uint32_t end, Vec* to) {
    const uint32_t flag = FlagOf(message.number, lane.args.call.number);
    Vec lines[2 * kVectors * kPacks] = {};
    for (uint32_t turn = 1;; ++turn) {
      bool all = true;
      JAXRING_UNROLL
      for (int i = 0; i < 2 * kVectors * kPacks; ++i) {
        const uint32_t pack = Map<kPacks>::Pack(begin, i / (2 * kVectors));
        if (pack < end) lines[i] = LoadLine(message.at + VectorOffset<2 * kVectors>(pack, i % (2 * kVectors)));
      }
      JAXRING_UNROLL
      for (int i = 0; i < 2 * kVectors * kPacks; ++i) {
        const uint32_t pack = Map<kPacks>::Pack(begin, i / (2 * kVectors));
        if (pack < end) all = all && lines[i].w[1] == flag && lines[i].w[3] == flag;
      }
      if (all) break;
      if (turn % kPatience == 0) {
        // A message's lines are of one call.
        const uint32_t seen = lines[0].w[1];
        if (GivesUp(lane, Wait::kMessage, message.peer, message.number, OfOtherCall(seen, flag), seen >> 16)) {
          return false;
        }
      }
      Pause(turn);
    }
    JAXRING_UNROLL
    for (int i = 0; i < kVectors * kPacks; ++i) {
      to[i] = {{lines[2 * i].w[0], lines[2 * i].w[2], lines[2 * i + 1].w[0], lines[2 * i + 1].w[2]}};
    }
    return true;
  }

  template <int kPacks, int kVectors>
  JAXRING_DEVICE static void Store(const Lane& lane, const Operand& message, uint32_t begin, uint32_t end,
                                   const Vec* from) {
    const uint32_t flag = FlagOf(message.number, lane.args.call.number);
    JAXRING_UNROLL
    for (int i = 0; i < 2 * kVectors * kPacks; ++i) {
      const uint32_t pack = Map<kPacks>::Pack(begin, i / (2 * kVectors));
      if (pack >= end) continue;
      StoreLine(message.at + VectorOffset<2 * kVectors>(pack, i % (2 * kVectors)), Line(from[i / 2], i % 2, flag));
    }
  }

  // Writes the lines of `bytes` from `to` on that a message does not use: all but those of its `packs`, `lines` of
  // each. For one of `threads` threads.
  JAXRING_DEVICE static void WriteRest(char* to, uint64_t bytes, uint32_t packs, uint32_t lines, uint32_t flag,
                                       uint32_t thread, uint32_t threads) {
    const uint32_t all = static_cast<uint32_t>(bytes / 16);
    for (uint32_t line = packs / kWarp * kWarp * lines + thread; line < all; line += threads) {
      const bool used = line / kWarp / lines * kWarp + line % kWarp < packs;  // see VectorOffset
      if (!used) StoreLine(to + uint64_t{line} * 16, {{0, flag, 0, flag}});
    }
  }
  // Whether this message must write all lines of its slot (see above).
  JAXRING_DEVICE static bool Cleans(const Args& args, uint64_t number) { return (number & 0x7fffu) < args.group.slots; }
  // Then writes the others than those of its `packs`, as `vectors` vectors each.
  JAXRING_DEVICE static void Clean(const Args& args, const Operand& message, uint32_t packs, uint32_t vectors) {
    if (!Cleans(args, message.number)) return;
    WriteRest(message.at, args.group.slot_bytes, packs, 2 * vectors, FlagOf(message.number, args.call.number),
              ThreadIndex(), Threads());
  }
};

// For the one-shot all-reduces, whose messages are all elements, and that have no scratch. The number of such a message
// is that of the launch.
struct ElementLines : LL {
  static constexpr bool kPartial = false;
};

}  // namespace jaxring::cuda
