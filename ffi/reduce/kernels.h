// The arithmetic of reductions on the host: one table of functions for each (dtype, operation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "reduce/dtypes.h"

namespace jaxring {

// The numbers are those of jaxring/plan/dtypes.py.
// A mean is kSum with a divisor: `store` and `fold_many` divide by the number of ranks.
enum class ReduceOp : uint8_t { kSum = 0, kProd, kMin, kMax, kAnd, kOr, kXor };
inline constexpr int kReduceOpCount = 7;

// "Accumulator" elements are float for f8, f16 and bf16, and the dtype itself for the rest. Buffers need no alignment
// beyond their element's, and none for one-byte types. `n` counts elements. No function reads or writes past n.
struct Kernels {
  size_t element_bytes;
  size_t accumulator_bytes;
  // acc[i] = src[i], widened.
  void (*load)(void* acc, const void* src, size_t n);
  // acc[i] = acc[i] op src[i], src in the data's dtype.
  void (*fold)(void* acc, const void* src, size_t n);
  // acc[i] = acc[i] op src[i], src in accumulator elements.
  void (*fold_partial)(void* acc, const void* src, size_t n);
  // dst[i] = acc[i] rounded once, to nearest even (float8_e4m3fn overflows to NaN and float8_e5m2 to infinity, as
  // ml_dtypes casts). divisor 0: no division; otherwise acc[i] / divisor first (floats and complex only).
  void (*store)(void* dst, const void* acc, size_t n, uint64_t divisor);
  // dst[i] = ((srcs[0][i] op srcs[1][i]) op ...) in accumulator precision, rounded once. Every source is read once, and
  // the bits are those of load, fold ... fold, store. `dsts` are `dst_count` destinations that all get the value; each
  // may be one of the sources exactly, none may overlap otherwise. `stream` asks for non-temporal stores (the caller
  // fences with StreamFence afterwards).
  void (*fold_many)(void* const* dsts, size_t dst_count, const void* const* srcs, size_t src_count, size_t n,
                    uint64_t divisor, bool stream);
  // As fold_many, but the exact sum of the sources, rounded once: the same bits for any order of them. Of sums of
  // floats and complex numbers only; nullptr for the rest. The sum is -0 if all terms are -0, and +0 if it is zero
  // otherwise. NaN, and infinities of both signs, give the positive quiet NaN. The divisor is less than 2^24; the
  // quotient is rounded once, too, but for doubles, of which the rounded sum is divided.
  void (*sum_exactly)(void* const* dsts, size_t dst_count, const void* const* srcs, size_t src_count, size_t n,
                      uint64_t divisor, bool stream);
};

// The functions for (dtype, op), or nullptr where the operation has no meaning for the dtype: and/or/xor need bool or
// integers; min/max exclude complex; sum and prod exclude bool.
const Kernels* FindKernels(DType dtype, ReduceOp op);

// An elementwise function that a plan applies to complete values in accumulator precision, before they are rounded to
// the result's dtype. The rows are in reduce/functions.h; jaxring/epilogues/functions.py has the same ones.
struct Epilogue {
  const char* name;
  uint8_t parameters;  // numbers that hold for all elements
  uint8_t operands;    // further values of each element, which it reads
  uint8_t states;      // further values of each element, which it reads and writes
  // value[i] = f(value[i], further[0][i], further[1][i], ...; parameters), and the states, which follow the operands in
  // `further`, likewise. All are accumulator elements: float or double. It touches whole vectors of up to 64 bytes, so
  // all arrays have room for that beyond n, and hold initialised bytes there.
  void (*on_floats)(void* value, void* const* further, const void* parameters, size_t n);
  void (*on_doubles)(void* value, void* const* further, const void* parameters, size_t n);
};

// All there are.
std::span<const Epilogue> Epilogues();

// Copies `src` to several destinations and reads it once; `stream` as above.
void CopyMany(void* const* dsts, size_t dst_count, const void* src, size_t bytes, bool stream);
// Orders the calling thread's non-temporal stores before its later stores.
void StreamFence();

// The instruction set that FindKernels chose on this CPU: "avx512", "avx2", or "baseline" (SSE2 or NEON).
const char* InstructionSet();
// For tests: chooses by name. Returns false if this CPU or build lacks it. Not thread-safe.
bool ForceInstructionSet(const char* name);

}  // namespace jaxring
