// One pass over a slice: every source is read once and folded from left to right, and the value is stored to every
// target.
#pragma once

#include "cuda/device/packs.h"
#include "cuda/device/reduce.h"

namespace jaxring::cuda {

// Properties that a step's operands share.
struct Work {
  const Operand* source;  // in shared memory
  const Operand* target;
  uint32_t sources, targets;  // how many there are
  uint32_t packs;
  uint64_t bytes;  // of the slice as elements
  bool aligned;    // all addresses of elements are those of packs
  uint32_t log2;   // addresses and length are multiples of 2^log2 bytes, at most 4: the unit for partial packs
  bool divide;
  bool moves;  // one source and no arithmetic, so the elements are copied unchanged
};

// Which packs may be partial or at unaligned addresses.
enum class Edges {
  kNone,
  kAll,
  kSome,  // looked up for each pack: less code, for what has no loop of its own for whole packs
};

// Loads and stores packs [begin, end) of the slice.
template <class Protocol, int kWiden, int kPacks, Edges kEdges>
struct Access {
  using Map = typename Protocol::template Map<kPacks>;
  static constexpr int kVectors = kPacks * kWiden;

  JAXRING_DEVICE static uint32_t BytesOf(const Work& work, uint32_t pack) {
    const uint64_t at = static_cast<uint64_t>(pack) * kPackBytes;
    return work.bytes - at < kPackBytes ? static_cast<uint32_t>(work.bytes - at) : kPackBytes;
  }
  JAXRING_DEVICE static bool IsWhole(const Work& work, uint32_t pack) {
    if constexpr (kEdges != Edges::kSome) return kEdges == Edges::kNone;
    return work.aligned && BytesOf(work, pack) == kPackBytes;
  }

  // Loads elements in the dtype's own form.
  JAXRING_DEVICE static bool LoadElements(const Lane& lane, const Work& work, const Operand& from, uint32_t begin,
                                          uint32_t end, Vec (&raw)[kPacks]) {
    if constexpr (Protocol::kSlots) {
      if (from.form == Form::kMessage) return Protocol::template Load<kPacks, 1>(lane, from, begin, end, raw);
    }
    JAXRING_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      const uint32_t pack = Map::Pack(begin, u);
      if (pack >= end) continue;
      const char* at = from.at + static_cast<uint64_t>(pack) * kPackBytes;
      raw[u] = IsWhole(work, pack) ? Load(at) : LoadEdge(at, BytesOf(work, pack), work.log2);
    }
    return true;
  }

  JAXRING_DEVICE static void StoreElements(const Lane& lane, const Work& work, const Operand& to, uint32_t begin,
                                           uint32_t end, const Vec (&raw)[kPacks]) {
    if constexpr (Protocol::kSlots) {
      if (to.form == Form::kMessage) return Protocol::template Store<kPacks, 1>(lane, to, begin, end, raw);
    }
    const bool far = to.form == Form::kFar;
    JAXRING_UNROLL
    for (int u = 0; u < kPacks; ++u) {
      const uint32_t pack = Map::Pack(begin, u);
      if (pack >= end) continue;
      char* at = to.at + static_cast<uint64_t>(pack) * kPackBytes;
      if (IsWhole(work, pack)) {
        StoreEither(at, raw[u], far);
      } else {
        StoreEdge(at, raw[u], BytesOf(work, pack), work.log2, far);
      }
    }
  }

  JAXRING_DEVICE static bool LoadAccumulators(const Lane& lane, const Arithmetic& how, const Work& work,
                                              const Operand& from, uint32_t begin, uint32_t end, Vec (&to)[kVectors]) {
    if constexpr (kWiden > 1) {
      if constexpr (Protocol::kPartial) {
        if (from.form == Form::kPartialMessage) {
          return Protocol::template Load<kPacks, kWiden>(lane, from, begin, end, to);
        }
        if (from.form == Form::kScratch) {
          JAXRING_UNROLL
          for (int i = 0; i < kVectors; ++i) {
            const uint32_t pack = Map::Pack(begin, i / kWiden);
            if (pack < end) to[i] = Load(from.at + VectorOffset<kWiden>(pack, i % kWiden));
          }
          return true;
        }
      }
      Vec raw[kPacks] = {};
      if (!LoadElements(lane, work, from, begin, end, raw)) return false;
      JAXRING_UNROLL
      for (int u = 0; u < kPacks; ++u) Widen<kWiden>(how, raw[u], &to[u * kWiden]);
      return true;
    } else {
      return LoadElements(lane, work, from, begin, end, to);
    }
  }

  // A target takes the value as elements, which are rounded once for all such targets, or as accumulators.
  JAXRING_DEVICE static void StoreAccumulators(const Lane& lane, const Operand& to, uint32_t begin, uint32_t end,
                                               const Vec (&value)[kVectors]) {
    if (to.form == Form::kPartialMessage) {
      Protocol::template Store<kPacks, kWiden>(lane, to, begin, end, value);
    } else {
      JAXRING_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const uint32_t pack = Map::Pack(begin, i / kWiden);
        if (pack < end) Store(to.at + VectorOffset<kWiden>(pack, i % kWiden), value[i]);
      }
    }
  }
  JAXRING_DEVICE static bool TakesAccumulators(const Operand& operand) {
    return kWiden > 1 && Protocol::kPartial &&
           (operand.form == Form::kPartialMessage || operand.form == Form::kScratch);
  }
};

template <class Protocol, int kPacks, Edges kEdges>
JAXRING_DEVICE bool MovePacks(const Lane& lane, const Work& work, uint32_t begin, uint32_t end) {
  using Memory = Access<Protocol, 1, kPacks, kEdges>;
  for (uint32_t at = begin + WarpIndex() * Memory::Map::kPerWarp; at < end; at += Warps() * Memory::Map::kPerWarp) {
    Vec raw[kPacks] = {};
    if (!Memory::LoadElements(lane, work, work.source[0], at, end, raw)) return false;
    for (uint32_t t = 0; t < work.targets; ++t) {
      Memory::StoreElements(lane, work, work.target[t], at, end, raw);
    }
  }
  return true;
}

// `operation`: reduce.h.
template <class Protocol, int kWiden, int kPacks, Edges kEdges, class Operation>
JAXRING_DEVICE bool FoldPacks(Operation operation, const Lane& lane, const Arithmetic& how, const Work& work,
                              uint32_t begin, uint32_t end) {
  using Memory = Access<Protocol, kWiden, kPacks, kEdges>;
  constexpr int kVectors = Memory::kVectors;
  const Operand* sources = work.source;
  for (uint32_t at = begin + WarpIndex() * Memory::Map::kPerWarp; at < end; at += Warps() * Memory::Map::kPerWarp) {
    Vec value[kVectors] = {}, next[kVectors] = {};
    if (!Memory::LoadAccumulators(lane, how, work, sources[0], at, end, value)) return false;
    uint32_t s = 1;
    if constexpr (Protocol::kCounts && kEdges == Edges::kNone) {
      Vec other[kVectors] = {};
      for (; s + 1 < work.sources; s += 2) {  // the loads of two sources are in flight at a time
        if (!Memory::LoadAccumulators(lane, how, work, sources[s], at, end, next)) return false;
        if (!Memory::LoadAccumulators(lane, how, work, sources[s + 1], at, end, other)) return false;
        operation.Fold(value, next);
        operation.Fold(value, other);
      }
    }
    for (; s < work.sources; ++s) {
      if (!Memory::LoadAccumulators(lane, how, work, sources[s], at, end, next)) return false;
      operation.Fold(value, next);
    }
    if (work.divide) Divide<kWiden>(how, value);
    Vec raw[kPacks];
    JAXRING_UNROLL
    for (int u = 0; u < kPacks; ++u) raw[u] = Narrow<kWiden>(how, &value[u * kWiden]);
    for (uint32_t t = 0; t < work.targets; ++t) {
      const Operand& target = work.target[t];
      if constexpr (Protocol::kPartial) {
        if (Memory::TakesAccumulators(target)) {
          Memory::StoreAccumulators(lane, target, at, end, value);
          continue;
        }
      }
      Memory::StoreElements(lane, work, target, at, end, raw);
    }
  }
  return true;
}

// FoldPacks for whole packs, to be called with the operation. So each operation has a loop of its own, and the code
// that runs over and over is a few kilobytes of a kernel that has every operation.
template <class Protocol, int kWiden>
struct WholePacks {
  const Lane& lane;
  const Arithmetic& how;
  const Work& work;
  uint32_t end;

  template <class Operation>
  JAXRING_DEVICE bool operator()(Operation operation) const {
    return FoldPacks<Protocol, kWiden, Protocol::PacksOf(kWiden), Edges::kNone>(operation, lane, how, work, 0, end);
  }
};

// kWiden 0: the kernel that only moves data.
template <class Protocol, int kWiden>
JAXRING_DEVICE bool Pass(const Lane& lane, const Arithmetic& how, const Work& work) {
  constexpr int kMoved = Protocol::PacksOf(0);
  constexpr int kAtEdge = Protocol::kUnit > 1 ? 2 : 1;
  // Packs that the protocol loads and stores as one unit are not split between the two calls.
  const uint32_t whole = static_cast<uint32_t>(work.bytes / kPackBytes);
  const uint32_t edge = work.aligned ? whole / Protocol::kUnit * Protocol::kUnit : 0;
  bool good = true;
  if (kWiden == 0 || work.moves) {
    if (edge != 0) good = MovePacks<Protocol, kMoved, Edges::kNone>(lane, work, 0, edge);
    if (good && edge < work.packs) good = MovePacks<Protocol, kAtEdge, Edges::kAll>(lane, work, edge, work.packs);
  } else if constexpr (kWiden > 0) {
    const AnyOperation<kWiden> operation{how.code};
    const WholePacks<Protocol, kWiden> whole_packs{lane, how, work, edge};
    if constexpr (Protocol::kCounts) {
      if (edge != 0) good = WithOperation<kWiden>(how.code, whole_packs);
    } else {  // their loops wait for lines, which takes more code than all operations
      if (edge != 0) good = whole_packs(operation);
    }
    if (good && edge < work.packs) {
      good = FoldPacks<Protocol, kWiden, kAtEdge, Edges::kAll>(operation, lane, how, work, edge, work.packs);
    }
  }
  return good;
}

}  // namespace jaxring::cuda
