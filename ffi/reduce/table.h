// One instruction set's table of functions. Per instruction set: see vectors.h.
#pragma once

#include "reduce/epilogues.h"
#include "reduce/fold_many.h"
#include "reduce/isa.h"

namespace jaxring::JAXRING_ISA {
namespace {

template <class Codec, class Op>
constexpr Kernels MakeKernels() {
  using Lane = typename Codec::Lane;
  auto fold_partial = Fold<Codec, Op>;
  if constexpr (Codec::kWidens) fold_partial = Fold<Plain<Lane>, Op>;
  Kernels kernels = {Codec::kElementBytes, Codec::kAccumulatorBytes, Load<Codec>, Fold<Codec, Op>, fold_partial,
                     Store<Codec>,         FoldMany<Codec, Op>,      nullptr};
  if constexpr (std::is_same_v<Op, Sum> && Lane(0.5) != Lane(0)) kernels.sum_exactly = FoldMany<Codec, ExactSum>;
  return kernels;
}

constexpr KernelTable kTable = {
#define JAXRING_SUM_TO_MAX(Wrapping, Ordered) \
  MakeKernels<Wrapping, Sum>(), MakeKernels<Wrapping, Prod>(), MakeKernels<Ordered, Min>(), MakeKernels<Ordered, Max>()
#define JAXRING_BITWISE(Codec) MakeKernels<Codec, And>(), MakeKernels<Codec, Or>(), MakeKernels<Codec, Xor>()
#define JAXRING_INTEGER(Unsigned, Type) \
  {JAXRING_SUM_TO_MAX(Plain<Unsigned>, Plain<Type>), JAXRING_BITWISE(Plain<Unsigned>)}
#define JAXRING_FLOAT(Codec) {JAXRING_SUM_TO_MAX(Codec, Codec)}
#define JAXRING_COMPLEX(Part) {MakeKernels<Plain<Part, 2>, Sum>(), MakeKernels<Plain<Part, 2>, ComplexProd>()}
    {{}, {}, MakeKernels<Plain<uint8_t>, Min>(), MakeKernels<Plain<uint8_t>, Max>(), JAXRING_BITWISE(Plain<uint8_t>)},
    JAXRING_INTEGER(uint8_t, int8_t),
    JAXRING_INTEGER(uint16_t, int16_t),
    JAXRING_INTEGER(uint32_t, int32_t),
    JAXRING_INTEGER(uint64_t, int64_t),
    JAXRING_INTEGER(uint8_t, uint8_t),
    JAXRING_INTEGER(uint16_t, uint16_t),
    JAXRING_INTEGER(uint32_t, uint32_t),
    JAXRING_INTEGER(uint64_t, uint64_t),
    JAXRING_FLOAT(Widened<Float8E4M3FN>),
    JAXRING_FLOAT(Widened<Float8E5M2>),
    JAXRING_FLOAT(Half),
    JAXRING_FLOAT(Widened<BFloat16>),
    JAXRING_FLOAT(Plain<float>),
    JAXRING_FLOAT(Plain<double>),
    JAXRING_COMPLEX(float),
    JAXRING_COMPLEX(double),
#undef JAXRING_SUM_TO_MAX
#undef JAXRING_BITWISE
#undef JAXRING_INTEGER
#undef JAXRING_FLOAT
#undef JAXRING_COMPLEX
};

// Whether each row is of the dtype that its place says.
constexpr bool RowsAreOfTheirDtypes() {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (const Kernels& kernels : kTable[dtype]) {
      if (kernels.element_bytes == 0) continue;
      if (kernels.element_bytes != kDTypes[dtype].bytes) return false;
      if (kernels.accumulator_bytes != kDTypes[dtype].accumulator_bytes) return false;
    }
  }
  return true;
}
static_assert(RowsAreOfTheirDtypes(), "a row for each dtype, in the order of DType");

}  // namespace
}  // namespace jaxring::JAXRING_ISA
