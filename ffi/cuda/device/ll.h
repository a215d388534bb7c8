// The LL (low latency) protocol: every 8 bytes are 4 bytes of data and 4 of flag in one store, so a reader that sees
// the flag has the data. A vector takes two lines of 16 bytes: {data, flag, data, flag}.
//
// The flag is the message's number, from 1, in 32 bits. Slots are zero at first, and messages leave the unused end of a
// slot unchanged, so a slot must never hold a future flag by chance. Therefore the first messages of a communicator,
// and those after every 2^31, write their slots to the end, and no flag in a slot is older than that.
#pragma once

#include "cuda/device/packs.h"

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

  JAXRING_DEVICE static uint32_t Flag(uint64_t number) { return static_cast<uint32_t>(number + 1); }

  JAXRING_DEVICE static Vec Line(const Vec& data, int half, uint32_t flag) {
    return {{data.w[2 * half], flag, data.w[2 * half + 1], flag}};
  }

  // Whether a line with that flag is of the awaited launch, but of another call. Flags of slots do not say so.
  JAXRING_DEVICE static bool OfOtherCall(uint32_t, uint32_t) { return false; }

  template <int kPacks, int kVectors>
  JAXRING_DEVICE static bool Load(const Lane& lane, const Operand& message, uint32_t begin, uint32_t end, Vec* to) {
    return LoadLines<LL, kPacks, kVectors>(lane, message, begin, end, to);
  }
  template <class Self, int kPacks, int kVectors>
  JAXRING_DEVICE static bool LoadLines(const Lane& lane, const Operand& message, uint32_t begin, uint32_t end,
                                       Vec* to) {
    const uint32_t flag = Flag(message.number);
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
        uint32_t other = flag;
        JAXRING_UNROLL
        for (int i = 0; i < 2 * kVectors * kPacks; ++i) {
          const bool used = Map<kPacks>::Pack(begin, i / (2 * kVectors)) < end;
          if (used && Self::OfOtherCall(lines[i].w[1], flag)) other = lines[i].w[1];
        }
        if (other != flag) {
          Report(lane, Fault::kOtherCall, Wait::kMessage, message.peer, other >> 16);
          return false;
        }
        if (GivesUp(lane, Wait::kMessage, message.peer, message.number)) return false;
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
  JAXRING_DEVICE static void Store(const Operand& message, uint32_t begin, uint32_t end, const Vec* from) {
    const uint32_t flag = Flag(message.number);
    JAXRING_UNROLL
    for (int i = 0; i < 2 * kVectors * kPacks; ++i) {
      const uint32_t pack = Map<kPacks>::Pack(begin, i / (2 * kVectors));
      if (pack >= end) continue;
      StoreLine(message.at + VectorOffset<2 * kVectors>(pack, i % (2 * kVectors)), Line(from[i / 2], i % 2, flag));
    }
  }

  // Writes the rest of the slot, from `used` bytes on, if this message must (see above).
  JAXRING_DEVICE static void Clean(const Args& args, const Operand& message, uint64_t used) {
    if ((message.number & 0x7fffffffu) >= args.slots) return;
    const uint32_t flag = Flag(message.number);
    for (uint64_t at = used + ThreadIndex() * 16; at < args.slot_bytes; at += Threads() * 16) {
      StoreLine(message.at + at, {{0, flag, 0, flag}});
    }
  }
};

// For the one-shot all-reduces, whose messages are all elements, and that have no scratch. A flag is 16 bits of the
// launch's number, from 1, and 16 of Args::call, so that a reader can tell which call a rank is in. The number of such
// a message is what makes LL give it that flag.
struct ElementLines : LL {
  static constexpr bool kPartial = false;
  static constexpr uint32_t kNumberMask = 0xffff;

  JAXRING_DEVICE static uint32_t FlagOf(uint64_t launch, uint32_t call) {
    return (static_cast<uint32_t>(launch + 1) & kNumberMask) | call << 16;
  }
  // For lines that hold the flag of this launch or of one less than 2^16 - 1 before.
  JAXRING_DEVICE static bool OfOtherCall(uint32_t seen, uint32_t flag) {
    return seen != flag && ((seen ^ flag) & kNumberMask) == 0;
  }
  template <int kPacks, int kVectors>
  JAXRING_DEVICE static bool Load(const Lane& lane, const Operand& message, uint32_t begin, uint32_t end, Vec* to) {
    return LoadLines<ElementLines, kPacks, kVectors>(lane, message, begin, end, to);
  }
};

}  // namespace jaxring::cuda
