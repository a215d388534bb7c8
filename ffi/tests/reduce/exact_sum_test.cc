// Exact sums: the same bits from every instruction set, for any order of the terms, and those of a sum of integers.
#include <algorithm>
#include <random>
#include <string>

#include "reduce/kernels.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

constexpr const char* kSets[] = {"baseline", "avx2", "avx512"};
constexpr size_t kElements = 517;  // several chunks of every instruction set, and a rest
constexpr DType kFloats[] = {DType::kF8E4M3FN, DType::kF8E5M2, DType::kF16, DType::kBF16,
                             DType::kF32,      DType::kF64,    DType::kC64, DType::kC128};

using Buffer = std::vector<char>;

// Bits of any kind in one part, so of any exponents, and numbers of like size in the other: fast and slow ways.
std::vector<Buffer> Draw(DType d, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Buffer> sources(count, Buffer(kElements * ElementBytes(d)));
  for (Buffer& source : sources) {
    for (char& byte : source) byte = static_cast<char>(random());
    for (size_t i = 0; i < kElements; ++i) {
      if (i % 100 < 50) Write(d, source.data() + i * ElementBytes(d), {std::ldexp(random() % 4096 - 2047.5, -12), 0.5});
    }
  }
  return sources;
}

Buffer Sum(DType d, const std::vector<Buffer>& sources, uint64_t divisor, bool stream = false) {
  Buffer out(kElements * ElementBytes(d) + 1, 0x5a);
  std::vector<const void*> srcs;
  for (const Buffer& source : sources) srcs.push_back(source.data());
  void* dst = out.data();
  FindKernels(d, ReduceOp::kSum)->sum_exactly(&dst, 1, srcs.data(), srcs.size(), kElements, divisor, stream);
  if (stream) StreamFence();
  CHECK_EQ(out.back(), 0x5a);
  return out;
}

CASE("the same bits for any order, from every instruction set") {
  for (DType d : kFloats) {
    for (size_t count : {1, 2, 3, 8, 9, 33}) {
      std::vector<Buffer> sources = Draw(d, count, 100 * static_cast<int>(d) + count);
      for (uint64_t divisor : {0, 3, 8, 4000}) {
        CHECK(ForceInstructionSet("baseline"));
        const Buffer want = Sum(d, sources, divisor);
        std::mt19937_64 random(count);
        for (const char* set : kSets) {
          if (!ForceInstructionSet(set)) continue;
          for (int turn = 0; turn < 3; ++turn) {
            CHECK(Sum(d, sources, divisor, turn % 2) == want);
            std::shuffle(sources.begin(), sources.end(), random);
          }
        }
      }
    }
  }
}

CASE("sources in place, and several destinations") {
  for (DType d : kFloats) {
    std::vector<Buffer> sources = Draw(d, 3, 7);
    const Buffer want = Sum(d, sources, 0);
    Buffer other(want.size(), 0x5a);
    const void* srcs[] = {sources[0].data(), sources[1].data(), sources[2].data()};
    void* dsts[] = {sources[1].data(), other.data()};
    FindKernels(d, ReduceOp::kSum)->sum_exactly(dsts, 2, srcs, 3, kElements, 0, false);
    CHECK(other == want);
    CHECK(std::equal(sources[1].begin(), sources[1].end(), want.begin()));
  }
}

// Terms are integers of 24 or 53 bits times powers of two, whose exact sum an integer holds.
template <class T, class Integer>
void CheckIntegers(DType d, int bits, int shifts) {
  std::mt19937_64 random(bits);
  std::vector<Buffer> sources(7, Buffer(kElements * sizeof(T)));
  std::vector<Integer> want(kElements, 0);
  for (Buffer& source : sources) {
    for (size_t i = 0; i < kElements; ++i) {
      Integer term = static_cast<Integer>(random() >> (64 - bits)) << random() % shifts;
      if (random() % 2) term = -term;
      if (i % 3 == 0) term = want[i] ? -want[i] + 1 : term;  // almost all cancels
      const T value = static_cast<T>(term);
      Put(source.data() + i * sizeof(T), value);
      want[i] += static_cast<Integer>(value);
    }
  }
  for (const char* set : kSets) {
    if (!ForceInstructionSet(set)) continue;
    const Buffer sum = Sum(d, sources, 0), mean = Sum(d, sources, 8);
    for (size_t i = 0; i < kElements; ++i) {
      CHECK_EQ(Get<T>(sum.data() + i * sizeof(T)), static_cast<T>(want[i]));
      CHECK_EQ(Get<T>(mean.data() + i * sizeof(T)), static_cast<T>(want[i]) / 8);
    }
  }
}

CASE("the exactly rounded sum of integers") {
  CheckIntegers<float, int64_t>(DType::kF32, 24, 35);
  CheckIntegers<double, __int128>(DType::kF64, 53, 65);
}

CASE("only sums of floats and complex numbers have one") {
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const Kernels* kernels = FindKernels(static_cast<DType>(d), static_cast<ReduceOp>(o));
      if (kernels == nullptr) continue;
      CHECK_EQ(kernels->sum_exactly != nullptr, o == 0 && !IsInteger(static_cast<DType>(d)));
    }
  }
}

}  // namespace
}  // namespace jaxring::test
