// Records and launch of collectives through multicast memory (NVLS): the switch reduces what it reads from all GPUs,
// and stores one value to all of them. The kernel is in ffi/cuda/experimental/multicast.h. Needs no CUDA header to
// include.
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

enum class MulticastKind : uint8_t {
  kAllReduce = 0,
  kReduceScatter,
  kAllGather,
  // For testing memory by one lane, see MulticastProbe: this rank stores to all, and reads a sum over all.
  kTryStore,
  kTrySum
};

// Lines of kPackBytes at the beginning of each replica, for the test: what each rank has stored to all, what this rank
// is about to store, its part of the sum, and the sum that it has read.
struct MulticastProbe {
  static constexpr uint64_t At(uint64_t line) { return line * kPackBytes; }
  static constexpr uint64_t Stored(int rank) { return At(rank); }
  static constexpr uint64_t Own(int ranks) { return At(ranks); }
  static constexpr uint64_t Part(int ranks) { return At(ranks + 1); }
  static constexpr uint64_t Sum(int ranks) { return At(ranks + 2); }
  static constexpr uint64_t Bytes(int ranks) { return At(ranks + 3); }
};

// A rank's memory that is bound to a multicast object: two addresses of the same bytes. All ranks have the same `bytes`
// at the same offsets. The memory belongs to the communicator. No buffer of a program is bound, so late stores of peers
// after a lane's failure do no harm.
struct Multicast {
  char* own;       // this rank's replica
  char* all;       // every rank's replica: for multimem instructions only
  uint64_t bytes;  // a multiple of 512
  MulticastKind kind;
};

// The bytes of a block of the program's elements that fit one half of a lane's part of the memory; 0 if it is too
// small. All-reduce has one block there, the others have one of each rank. `widen`: SwitchForm's.
constexpr uint64_t MulticastSlice(MulticastKind kind, uint64_t bytes, uint32_t lanes, uint32_t ranks, uint32_t widen) {
  constexpr uint64_t kRun = kWarp * kPackBytes;
  return bytes / 2 / lanes / (kind == MulticastKind::kAllReduce ? 1 : ranks) / widen / kRun * kRun;
}

// The form of elements in the memory, in which the switch can reduce them.
struct SwitchForm {
  uint8_t widen;  // bytes in the memory for each byte of the program's; 0: switches cannot reduce it
  bool keys;      // whether elements are integer keys of the same order: keys.h
};

// The form is chosen so that nothing but the order of a sum differs from what we promise. A mean of float16 or bfloat16
// is computed in float32 and rounded at the end: a switch's sum of these formats is rounded already, and for float16 it
// could overflow where the mean does not. Minimum and maximum use keys for all floats. Switches have them for float16
// and bfloat16 only, and it is not documented that a NaN wins there and that -0 is below +0.
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
  return args.call.reduces ? SwitchFormOf(args.call.dtype, args.call.op, args.call.divisor != 0) : SwitchForm{1, false};
}
constexpr bool SwitchReduces(DType dtype, ReduceOp op, bool mean) { return SwitchFormOf(dtype, op, mean).widen != 0; }

// Runs args.shape.lanes lanes among ranks that are all each other's memory peers, as Launch does (kernel_launch.h).
// Only this rank accesses its buffers, so their regions are ignored. For devices of compute capability 9.0 and later.
// Returns a cudaError_t.
int LaunchMulticast(const Multicast& memory, const Args& args, int threads, void* stream);
int LoadMulticastKernel();
// Whether this build has the kernel for every device that has multicast: its PTX must be of 9.0 or later.
bool MulticastCompiled();

}  // namespace jaxring::cuda
