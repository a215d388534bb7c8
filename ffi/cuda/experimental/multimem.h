// Accesses by multicast addresses, each of which stands for one location in the memory of several GPUs, and the fence
// that orders them with other accesses. As in device.h: PTX (multimem, PTX ISA 9.7.9.14) for sm_90 and later, or the
// shim's.
//
// The memory has two addresses, which are aliases. Accesses by one are ordered before accesses by the other only if, in
// addition to the usual synchronisation, some thread executes FenceAliases between them in causality order (PTX ISA
// 8.9.5, proxy-preserved base causality order, third case).
#pragma once

#include "cuda/device/arithmetic.h"
#include "cuda/device/reduce.h"

#if !defined(__CUDACC__)
#include "cuda/experimental/multimem_host.h"
#else

namespace jaxring::cuda {

JAXRING_DEVICE void FenceAliases() { asm volatile("fence.proxy.alias;" ::: "memory"); }

// Loads from this GPU's replica by its own address. Peers store there, so loads bypass the L1 cache.
JAXRING_DEVICE Vec LoadBound(const char* from) { return LoadSlot(from); }
JAXRING_DEVICE void StoreBound(char* to, const Vec& v) { Store(to, v); }

// Stores to all replicas. The type only gives the width; the bits are not changed.
JAXRING_DEVICE void StoreAll(char* to, const Vec& v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), JAXRING_FROM(v) : "memory");
}

#define JAXRING_MULTIMEM "multimem.ld_reduce.relaxed.sys.global."
#define JAXRING_REDUCED_VECTOR(name, how)                                                                   \
  struct name {                                                                                             \
    JAXRING_DEVICE static Vec Load(const char* from) {                                                      \
      Vec v;                                                                                                \
      asm volatile(JAXRING_MULTIMEM how " {%0, %1, %2, %3}, [%4];" : JAXRING_TO(v) : "l"(from) : "memory"); \
      return v;                                                                                             \
    }                                                                                                       \
  };
// There are no vectors of integers and doubles.
#define JAXRING_REDUCED_WORDS(name, how)                                                               \
  struct name {                                                                                        \
    JAXRING_DEVICE static Vec Load(const char* from) {                                                 \
      Vec v;                                                                                           \
      JAXRING_UNROLL                                                                                   \
      for (int i = 0; i < 4; ++i) {                                                                    \
        asm volatile(JAXRING_MULTIMEM how " %0, [%1];" : "=r"(v.w[i]) : "l"(from + 4 * i) : "memory"); \
      }                                                                                                \
      return v;                                                                                        \
    }                                                                                                  \
  };
#define JAXRING_REDUCED_DOUBLES(name, how)                                                           \
  struct name {                                                                                      \
    JAXRING_DEVICE static Vec Load(const char* from) {                                               \
      Vec v;                                                                                         \
      JAXRING_UNROLL                                                                                 \
      for (int i = 0; i < 2; ++i) {                                                                  \
        uint64_t word;                                                                               \
        asm volatile(JAXRING_MULTIMEM how " %0, [%1];" : "=l"(word) : "l"(from + 8 * i) : "memory"); \
        SetWord64(v, i, word);                                                                       \
      }                                                                                              \
      return v;                                                                                      \
    }                                                                                                \
  };
JAXRING_REDUCED_VECTOR(SumF32, "add.v4.f32")
JAXRING_REDUCED_VECTOR(SumF16, "add.acc::f32.v4.f16x2")
JAXRING_REDUCED_VECTOR(SumBF16, "add.acc::f32.v4.bf16x2")
JAXRING_REDUCED_DOUBLES(SumF64, "add.f64")
JAXRING_REDUCED_WORDS(Sum32, "add.u32")
JAXRING_REDUCED_DOUBLES(Sum64, "add.u64")
JAXRING_REDUCED_WORDS(MinS32, "min.s32")
JAXRING_REDUCED_WORDS(MinU32, "min.u32")
JAXRING_REDUCED_DOUBLES(MinS64, "min.s64")
JAXRING_REDUCED_DOUBLES(MinU64, "min.u64")
JAXRING_REDUCED_WORDS(MaxS32, "max.s32")
JAXRING_REDUCED_WORDS(MaxU32, "max.u32")
JAXRING_REDUCED_DOUBLES(MaxS64, "max.s64")
JAXRING_REDUCED_DOUBLES(MaxU64, "max.u64")
JAXRING_REDUCED_DOUBLES(AllAnd, "and.b64")
JAXRING_REDUCED_DOUBLES(AllOr, "or.b64")
JAXRING_REDUCED_DOUBLES(AllXor, "xor.b64")
#undef JAXRING_REDUCED_VECTOR
#undef JAXRING_REDUCED_WORDS
#undef JAXRING_REDUCED_DOUBLES
#undef JAXRING_MULTIMEM

template <class Reduced, int kN>
JAXRING_DEVICE void LoadEach(const char* const (&from)[kN], Vec (&to)[kN]) {
  JAXRING_UNROLL
  for (int i = 0; i < kN; ++i) {
    if (from[i] != nullptr) to[i] = Reduced::Load(from[i]);
  }
}

// The switch's reduction of all replicas, in unspecified order; skips an address that is nullptr. For the operations
// and forms of SwitchFormOf, which also explains why the instructions for min and max of float16 and bfloat16 are not
// used.
template <int kN>
JAXRING_DEVICE void LoadReduced(const Arithmetic& how, const char* const (&from)[kN], Vec (&to)[kN]) {
  if (how.dtype == DType::kF16 && how.code == Code::kSumF32) return LoadEach<SumF16>(from, to);
  if (how.dtype == DType::kBF16 && how.code == Code::kSumF32) return LoadEach<SumBF16>(from, to);
  switch (how.code) {
#define JAXRING_CASE(name, Reduced) \
  case Code::name:                  \
    return LoadEach<Reduced>(from, to);
    JAXRING_CASE(kSumF32, SumF32)
    JAXRING_CASE(kSumF64, SumF64)
    JAXRING_CASE(kSum32, Sum32)
    JAXRING_CASE(kSum64, Sum64)
    JAXRING_CASE(kMinS32, MinS32)
    JAXRING_CASE(kMinU32, MinU32)
    JAXRING_CASE(kMinS64, MinS64)
    JAXRING_CASE(kMinU64, MinU64)
    JAXRING_CASE(kMaxS32, MaxS32)
    JAXRING_CASE(kMaxU32, MaxU32)
    JAXRING_CASE(kMaxS64, MaxS64)
    JAXRING_CASE(kMaxU64, MaxU64)
    JAXRING_CASE(kAnd, AllAnd)
    JAXRING_CASE(kOr, AllOr)
    JAXRING_CASE(kXor, AllXor)
#undef JAXRING_CASE
    default:
      return;
  }
}

}  // namespace jaxring::cuda

#endif
