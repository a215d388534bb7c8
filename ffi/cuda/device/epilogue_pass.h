// One pass over a slice in launches with an epilogue: folds the sources, applies the functions where the step has
// StepFlag::kEpilogue, and stores to every target. On CPUs CombineWithEpilogue and Combine do this.
//
// A warp takes a chunk of packs at a time. Where functions are applied, it leaves the accumulators in its part of the
// block's shared memory, in the order of the elements. There each thread applies the functions to every 32nd element,
// so that a warp's accesses to operands and states are neighbours, whatever their dtypes are. The results take the
// place of the accumulators, and leave as packs of their own dtype: those of a chunk are whole packs again.
//
// One instance serves all dtypes: what differs between them is looked up where it differs. So there is one kernel for
// each protocol, and not one for each dtype and function.
#pragma once

#include <algorithm>

#include "cuda/device/element_functions.h"
#include "cuda/device/float_arrays.h"
#include "cuda/device/pass.h"

namespace jaxring::cuda {
namespace {

// An operation on floats, looked up for each fold.
template <int kWiden>
struct FloatOperation {
  ReduceOp op;
  bool doubles;

  template <int kN>
  JAXRING_DEVICE void Fold(Vec (&a)[kN], const Vec (&b)[kN]) const {
    if constexpr (kWiden == 1) {
      if (doubles) return FoldAs<double>(a, b);
    }
    FoldAs<float>(a, b);
  }

 private:
  template <class T, int kN>
  JAXRING_DEVICE void FoldAs(Vec (&a)[kN], const Vec (&b)[kN]) const {
    switch (op) {
      case ReduceOp::kSum:
        return Apply<T, Sum>(a, b);
      case ReduceOp::kProd:
        return Apply<T, Prod>(a, b);
      case ReduceOp::kMin:
        return Apply<T, Min>(a, b);
      default:
        return Apply<T, Max>(a, b);
    }
  }
};

// Packs of a chunk, as many as a warp folds at a time.
template <class Protocol, int kWiden>
inline constexpr uint32_t kChunkPacks = Protocol::template Map<Protocol::PacksOf(kWiden)>::kPerWarp;

// The dynamic shared memory of a launch: the accumulators of a chunk for each of its warps.
template <class Protocol>
struct EpilogueShared {
  static constexpr uint32_t kVectors =
      std::max({kChunkPacks<Protocol, 1>, 2 * kChunkPacks<Protocol, 2>, 4 * kChunkPacks<Protocol, 4>});
  struct Chunk {
    alignas(16) char bytes[kVectors * kPackBytes];
  };
  Chunk chunks[kMaxThreads / kWarp];

  static constexpr uint64_t BytesFor(int threads) { return threads / kWarp * sizeof(Chunk); }
};

template <class Protocol>
class EpiloguePass {
 public:
  // `values` has the sources and the length as elements of the data, `results` the targets and the length as elements
  // of `result`. `widening`: accumulator vectors of a pack of values, 1 if they are moved. `buffered`: whether targets
  // take elements that are not the accumulators; then the first `functions` of the epilogue are applied, which are all
  // or none. `first`: the operands' element of the slice's first.
  struct Slice {
    Work values, results;
    DType result;
    uint32_t widening, functions;
    bool buffered;
    uint64_t first;
  };

  JAXRING_DEVICE EpiloguePass(const Lane& lane, const Arithmetic& how, const EpilogueArgs& epilogue, const Slice& slice)
      : lane_(lane),
        how_(how),
        epilogue_(epilogue),
        slice_(slice),
        chunk_(BlockMemory<EpilogueShared<Protocol>>().chunks[WarpIndex()].bytes) {}

  // False if it gave up waiting.
  JAXRING_DEVICE bool Run() {
    const uint32_t packs = ChunkPacks(), all = slice_.values.packs;
    JAXRING_ROLLED
    for (uint32_t at = WarpIndex() * packs; at < all; at += Warps() * packs) {
      const uint32_t end = at + packs < all ? at + packs : all;
      const bool good = FoldChunk(at, end);
      if (!slice_.buffered) {
        if (!good) return false;
        continue;
      }
      if (WarpAny(!good)) return false;
      SyncWarp();
      if (Doubles()) {
        ApplyTo<double>(at, end);
      } else {
        ApplyTo<float>(at, end);
      }
      SyncWarp();
      Store(at, end);
      SyncWarp();
    }
    return true;
  }

 private:
  JAXRING_DEVICE bool Doubles() const { return how_.dtype == DType::kF64; }
  JAXRING_DEVICE uint32_t ChunkPacks() const {
    return slice_.widening == 1   ? kChunkPacks<Protocol, 1>
           : slice_.widening == 2 ? kChunkPacks<Protocol, 2>
                                  : kChunkPacks<Protocol, 4>;
  }

  JAXRING_DEVICE bool FoldChunk(uint32_t at, uint32_t end) {
    switch (slice_.widening) {
      case 1:
        return Fold<1>(at, end);
      case 2:
        return Fold<2>(at, end);
      default:
        return Fold<4>(at, end);
    }
  }

  // Stores what targets take as it is, and leaves the accumulators in the chunk if others take something else.
  template <int kWiden>
  JAXRING_DEVICE bool Fold(uint32_t at, uint32_t end) {
    using Memory = Access<Protocol, kWiden, Protocol::PacksOf(kWiden), Edges::kSome>;
    const FloatOperation<kWiden> operation{lane_.args.call.op, Doubles()};
    Vec value[Memory::kVectors] = {}, next[Memory::kVectors] = {};
    const Operand* sources = slice_.values.source;
    if (!Memory::LoadAccumulators(lane_, how_, slice_.values, sources[0], at, end, value)) return false;
    JAXRING_ROLLED
    for (uint32_t s = 1; s < slice_.values.sources; ++s) {
      if (!Memory::LoadAccumulators(lane_, how_, slice_.values, sources[s], at, end, next)) return false;
      operation.Fold(value, next);
    }
    if (slice_.values.divide) Divide<kWiden>(how_, value);
    for (uint32_t t = 0; t < slice_.results.targets; ++t) {
      const Operand& target = slice_.results.target[t];
      if constexpr (kWiden > 1) {
        if (TakesAccumulators(target)) Memory::StoreAccumulators(lane_, target, at, end, value);
      } else {
        if (!slice_.buffered) Memory::StoreElements(lane_, slice_.results, target, at, end, value);
      }
    }
    if (!slice_.buffered) return true;
    JAXRING_UNROLL
    for (int i = 0; i < Memory::kVectors; ++i) {
      const uint32_t pack = Memory::Map::Pack(at, i / kWiden);
      if (pack < end) *reinterpret_cast<Vec*>(chunk_ + ((pack - at) * kWiden + i % kWiden) * kPackBytes) = value[i];
    }
    return true;
  }
  JAXRING_DEVICE static bool TakesAccumulators(const Operand& target) {
    return target.form == Form::kPartialMessage || target.form == Form::kScratch;
  }

  JAXRING_DEVICE uint64_t ElementsBefore(uint32_t pack) const {
    const uint32_t element = BytesOf(how_.dtype);
    const uint64_t before = static_cast<uint64_t>(pack) * kPackBytes;
    return (before < slice_.values.bytes ? before : slice_.values.bytes) / element;
  }

  template <class T>
  JAXRING_DEVICE void ApplyTo(uint32_t at, uint32_t end) {
    constexpr int kCount = 4;
    const uint64_t before = ElementsBefore(at);
    const uint32_t elements = static_cast<uint32_t>(ElementsBefore(end) - before);
    JAXRING_ROLLED
    for (uint32_t begin = 0; begin < elements; begin += kCount * kWarp) {
      T values[kCount] = {};
      JAXRING_UNROLL
      for (int u = 0; u < kCount; ++u) {
        const uint32_t element = begin + u * kWarp + WarpLane();
        if (element < elements) values[u] = *reinterpret_cast<const T*>(chunk_ + element * sizeof(T));
      }
      const uint64_t first = slice_.first + before + begin, last = slice_.first + before + elements;
      JAXRING_ROLLED
      for (uint32_t f = 0; f < slice_.functions; ++f)
        ApplyFunction(epilogue_, epilogue_.function[f], first, last, values);
      // Results are at most as wide as accumulators, so what they overwrite has been loaded.
      SyncWarp();
      StoreValues(chunk_, slice_.result, begin, elements, values);
    }
  }

  JAXRING_DEVICE void Store(uint32_t at, uint32_t end) {
    using Memory = Access<Protocol, 1, 1, Edges::kSome>;
    const uint32_t element = BytesOf(slice_.result);
    const uint32_t begin = static_cast<uint32_t>(ElementsBefore(at) * element / kPackBytes);
    const uint32_t last = static_cast<uint32_t>((ElementsBefore(end) * element + kPackBytes - 1) / kPackBytes);
    for (uint32_t t = 0; t < slice_.results.targets; ++t) {
      const Operand& target = slice_.results.target[t];
      if (TakesAccumulators(target)) continue;
      JAXRING_ROLLED
      for (uint32_t run = begin; run < last; run += Memory::Map::kPerWarp) {
        const uint32_t pack = Memory::Map::Pack(run, 0);
        Vec raw[1] = {};
        if (pack < last) raw[0] = *reinterpret_cast<const Vec*>(chunk_ + (pack - begin) * kPackBytes);
        Memory::StoreElements(lane_, slice_.results, target, run, last, raw);
      }
    }
  }

  const Lane& lane_;
  const Arithmetic& how_;
  const EpilogueArgs& epilogue_;
  const Slice& slice_;
  char* chunk_;
};

}  // namespace
}  // namespace jaxring::cuda
