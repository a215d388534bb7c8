// The LL128 protocol, low latency at nearly full bandwidth: 8 neighbouring threads store a line of 128 bytes at once,
// whose last 8 bytes are a flag. Only for paths on which such a store arrives as a whole: NVLink and own memory.
//
// Two lines carry 15 vectors, with no exchange between threads. Thread i of 8:
//
//   line  thread 0 .. 6       thread 7
//   A     vectors 0 .. 6      first half of vector 14, flag
//   B     vectors 7 .. 13     second half of vector 14, flag
//
// If packs have several vectors, there is a row for each: 15 packs' first vectors, then their second ones, and so on.
// The flag is the message's Stamp. No flag ever comes again.
#pragma once

#include "cuda/device/packs.h"
#include "cuda/device/tables.h"

namespace jaxring::cuda {

struct LL128 {
  static constexpr Protocol kProtocol = Protocol::kLL128;
  static constexpr bool kCounts = false;
  static constexpr bool kSlots = true;    // an operand may be a message
  static constexpr bool kPartial = true;  // an operand may be accumulators
  static constexpr bool kBulk = false;
  static constexpr uint32_t kUnit = kRowPacks;
  static constexpr int PacksOf(int widen) { return widen == 0 ? 4 : 2; }
  static constexpr uint32_t kRowBytes = 256;

  // A thread handles the packs at its place in kPacks / 2 rows; a warp handles four rows at a time.
  template <int kPacks>
  struct Map {
    static_assert(kPacks % 2 == 0);
    static constexpr uint32_t kPerWarp = kWarp / 8 * kRowPacks * (kPacks / 2);
    JAXRING_DEVICE static uint32_t Row(uint32_t begin, int u) { return begin / kRowPacks + u / 2 * 4 + WarpLane() / 8; }
    JAXRING_DEVICE static uint32_t Pack(uint32_t begin, int u) {
      const uint32_t place = WarpLane() % 8, row = Row(begin, u) * kRowPacks;
      if (place == 7) return u % 2 == 0 ? row + 14 : kNoPack;
      return row + u % 2 * 7 + place;
    }
  };

  template <int kVectors>
  JAXRING_DEVICE static char* Share(const Operand& message, uint32_t row, int v, int line) {
    return message.at + (static_cast<uint64_t>(row) * kVectors + v) * kRowBytes + line * 128 + WarpLane() % 8 * 16;
  }
  JAXRING_DEVICE static uint64_t FlagIn(const Vec& share) {
    return static_cast<uint64_t>(share.w[3]) << 32 | share.w[2];
  }

  template <int kPacks, int kVectors>
  JAXRING_DEVICE static bool Load(const Lane& lane, const Operand& message, uint32_t begin, uint32_t end, Vec* to) {
    const uint64_t flag = Stamp::Of(message.number, lane.args.call.number);
    const bool last = WarpLane() % 8 == 7;
    JAXRING_UNROLL
    for (int r = 0; r < kPacks / 2; ++r) {
      const uint32_t row = Map<kPacks>::Row(begin, 2 * r);
      const bool active = row * kRowPacks < end;
      JAXRING_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        Vec a{}, b{};
        for (uint32_t turn = 1;; ++turn) {
          // Threads without a row load the first row of their warp.
          const uint32_t there = active ? row : begin / kRowPacks;
          a = LoadShare(Share<kVectors>(message, there, v, 0));
          b = LoadShare(Share<kVectors>(message, there, v, 1));
          if (!WarpAny(last && active && !(FlagIn(a) == flag && FlagIn(b) == flag))) break;
          if (turn % kPatience == 0) {
            // A message's lines are of one call.
            const uint64_t seen = FlagIn(a);
            const bool in_other_call = last && active && seen != flag && Stamp::Has(seen, message.number);
            const bool lost =
                (in_other_call || WarpLane() == 0) &&
                GivesUp(lane, Wait::kMessage, message.peer, message.number, in_other_call, Stamp::CallOf(seen));
            if (WarpAny(lost)) return false;
          }
          Pause(turn);
        }
        if (last) {
          to[2 * r * kVectors + v] = {{a.w[0], a.w[1], b.w[0], b.w[1]}};
        } else {
          to[2 * r * kVectors + v] = a;
          to[(2 * r + 1) * kVectors + v] = b;
        }
      }
    }
    return true;
  }

  template <int kPacks, int kVectors>
  JAXRING_DEVICE static void Store(const Lane& lane, const Operand& message, uint32_t begin, uint32_t end,
                                   const Vec* from) {
    const uint64_t flag = Stamp::Of(message.number, lane.args.call.number);
    const uint32_t low = static_cast<uint32_t>(flag), high = static_cast<uint32_t>(flag >> 32);
    const bool last = WarpLane() % 8 == 7;
    JAXRING_UNROLL
    for (int r = 0; r < kPacks / 2; ++r) {
      const uint32_t row = Map<kPacks>::Row(begin, 2 * r);
      const bool active = row * kRowPacks < end;
      JAXRING_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const Vec& first = from[2 * r * kVectors + v];
        const Vec& second = from[(2 * r + 1) * kVectors + v];
        const Vec a = last ? Vec{{first.w[0], first.w[1], low, high}} : first;
        const Vec b = last ? Vec{{first.w[2], first.w[3], low, high}} : second;
        StoreShare(Share<kVectors>(message, row, v, 0), a, active);
        StoreShare(Share<kVectors>(message, row, v, 1), b, active);
      }
    }
  }

  JAXRING_DEVICE static bool Cleans(const Args&, uint64_t) { return false; }
  JAXRING_DEVICE static void Clean(const Args&, const Operand&, uint32_t, uint32_t) {}
};

}  // namespace jaxring::cuda
