// Collectives through multicast memory (NVLS): the switch reduces what it reads from all GPUs, and stores to all of
// them what it is given once. Records and launch; ffi/cuda/experimental/multicast.h is the kernel. Needs no CUDA header
// to include.
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

enum class MulticastKind : uint8_t {
  kAllReduce = 0,
  kReduceScatter,
  kAllGather,
  // For trying memory out, by one lane, see MulticastProbe: what this rank stores to all, what it sums of all.
  kTryStore,
  kTrySum
};

// Lines of kPackBytes at the beginning of each replica, before it is used: what each rank stored to all, what this one
// is about to store, its part of the sum, and the sum as it read it.
struct MulticastProbe {
  static constexpr uint64_t At(uint64_t line) { return line * kPackBytes; }
  static constexpr uint64_t Stored(int rank) { return At(rank); }
  static constexpr uint64_t Own(int ranks) { return At(ranks); }
  static constexpr uint64_t Part(int ranks) { return At(ranks + 1); }
  static constexpr uint64_t Sum(int ranks) { return At(ranks + 2); }
  static constexpr uint64_t Bytes(int ranks) { return At(ranks + 3); }
};

// A rank's memory that is bound to a multicast object, as two addresses of the same bytes. All ranks have the same
// `bytes` at the same offsets. Own memory of the communicator: no buffer of a program is bound, so what peers still
// store there when a lane has failed harms nobody.
struct Multicast {
  char* own;       // this rank's replica
  char* all;       // every rank's replica: for multimem instructions only
  uint64_t bytes;  // a multiple of 512
  MulticastKind kind;
};

// Bytes of a block, as the program has it, that one half of a lane's part of the memory takes; 0 where it is too small.
// All-reduce has one block in there, the others one of each rank. `widen`: SwitchForm's.
constexpr uint64_t MulticastSlice(MulticastKind kind, uint64_t bytes, uint32_t lanes, uint32_t ranks, uint32_t widen) {
  constexpr uint64_t kRun = kWarp * kPackBytes;
  return bytes / 2 / lanes / (kind == MulticastKind::kAllReduce ? 1 : ranks) / widen / kRun * kRun;
}

// How elements lie in the memory for the switch to reduce them.
struct SwitchForm {
  uint8_t widen;  // bytes in there for each of the program's; 0: switches cannot do it
  bool keys;      // as integers of the same order: keys.h
};

// So that no more than the order of a sum differs from what we promise. A mean of float16 and bfloat16 is one of
// float32, rounded when it comes out: the sum that a switch makes of them is rounded already, and of float16 it could
// overflow where the mean does not. Their minimum and maximum, which switches have, are done by keys as those of
// float32 and float64, which they have not: nothing says that a NaN wins there and that -0 is below +0.
constexpr SwitchForm SwitchFormOf(DType dtype, ReduceOp op, bool mean) {
  constexpr SwitchForm kNone{0, false}, kSame{1, false};
  const bool word =
      dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kUInt32 || dtype == DType::kUInt64;
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  const bool real = dtype == DType::kF32 || dtype == DType::kF64;
  const bool complex = dtype == DType::kC64 || dtype == DType::kC128;
  switch (op) {
    case ReduceOp::kSum:
      if (half && mean) return {2, false};
      return real || complex || (!mean && (word || half)) ? kSame : kNone;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if (half) return {2, true};
      if (real) return {1, true};
      return word ? kSame : kNone;
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor:
      return dtype <= DType::kUInt64 ? kSame : kNone;
    default:
      return kNone;
  }
}
constexpr SwitchForm SwitchFormOf(const Args& args) {
  return args.reduces ? SwitchFormOf(args.dtype, args.op, args.divisor != 0) : SwitchForm{1, false};
}
constexpr bool SwitchReduces(DType dtype, ReduceOp op, bool mean) { return SwitchFormOf(dtype, op, mean).widen != 0; }

// Plays args.lanes lanes among ranks that are all each other's memory peers, as Launch does (kernel_launch.h). `in` and
// `out` are touched by this rank only: their regions are not looked at. For devices of compute capability 9.0 and
// later. Returns a cudaError_t.
int LaunchMulticast(const Multicast& memory, const Args& args, int threads, void* stream);
int LoadMulticastKernel();
// Whether this build has the kernel for every device that has multicast: its PTX must be of 9.0 or later.
bool MulticastCompiled();

}  // namespace jaxring::cuda
