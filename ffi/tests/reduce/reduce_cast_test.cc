// Compares the conversions between float32 and the narrow floats, on every instruction set, with the slow reference.
#include <bit>
#include <random>
#include <string>

#include "reduce/kernels.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

void CheckWidening(DType d, const Kernels& kernels) {
  const Format& format = FormatOf(d);
  const size_t n = size_t{1} << format.bits, bytes = kernels.element_bytes;
  std::vector<char> codes(n * bytes), back(n * bytes);
  for (size_t code = 0; code < n; ++code) std::memcpy(codes.data() + code * bytes, &code, bytes);
  std::vector<float> wide(n);
  kernels.load(wide.data(), codes.data(), n);
  kernels.store(back.data(), wide.data(), n, 0);
  for (size_t code = 0; code < n; ++code) {
    CHECK(SameNumber(wide[code], format.Decode(static_cast<uint32_t>(code))));
    CHECK(SameElement(d, back.data() + code * bytes, codes.data() + code * bytes));
  }
}

// Each value of the format, the midpoint to the next value, and the floats next to these; then random floats.
std::vector<float> Floats(const Format& format) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> floats = {infinity, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max(),
                               std::bit_cast<float>(0x7f800001u)};
  for (size_t code = 0; code + 1 < format.values.size(); ++code) {
    const double low = format.values[code], high = format.values[code + 1];
    for (double value : {low, (low + high) / 2, high}) {
      const float middle = static_cast<float>(value);
      for (float near : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, infinity)})
        floats.push_back(near);
    }
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 1 << 19; ++i) floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  const float least = static_cast<float>(format.values[1]),
              most = static_cast<float>(std::min(format.values.back(), 3e38));
  std::uniform_real_distribution<float> exponent(std::log2(least) - 2, std::log2(most));
  for (int i = 0; i < 1 << 19; ++i) floats.push_back(std::exp2(exponent(random)));
  for (size_t i = 0, n = floats.size(); i < n; ++i) floats.push_back(-floats[i]);
  return floats;
}

void CheckNarrowing(DType d, const std::vector<float>& floats, const Kernels& kernels) {
  const size_t bytes = kernels.element_bytes;
  std::vector<char> got(floats.size() * bytes);
  kernels.store(got.data(), floats.data(), floats.size(), 0);
  for (size_t i = 0; i < floats.size(); ++i) {
    char want[16];
    Write(d, want, {floats[i]});
    if (SameElement(d, got.data() + i * bytes, want)) continue;
    std::cerr << InstructionSet() << " dtype " << static_cast<int>(d) << ": " << floats[i] << " gives "
              << Read(d, got.data() + i * bytes).re << ", not " << Read(d, want).re << std::endl;
    Fail(__FILE__, __LINE__, "a float is rounded to nearest even");
  }
}

// 256 and seven ones: if each sum were rounded, the ones would be lost; rounded once, the result is 264.
void CheckRoundsOnce(const Kernels& kernels) {
  const uint16_t large[1] = {0x4380}, one[1] = {0x3f80};
  const void* srcs[8] = {large, one, one, one, one, one, one, one};
  uint16_t out[1];
  void* dsts[1] = {out};
  kernels.fold_many(dsts, 1, srcs, 8, 1, 0, false);
  CHECK_EQ(Read(DType::kBF16, reinterpret_cast<const char*>(out)).re, 264.0);
}

CASE("casts of narrow floats on each instruction set") {
  for (DType d : {DType::kF8E4M3FN, DType::kF8E5M2, DType::kF16, DType::kBF16}) {
    const std::vector<float> floats = Floats(FormatOf(d));
    for (const char* set : {"baseline", "avx2", "avx512"}) {
      if (!ForceInstructionSet(set)) continue;
      const Kernels& kernels = *FindKernels(d, ReduceOp::kSum);
      CheckWidening(d, kernels);
      CheckNarrowing(d, floats, kernels);
      if (d == DType::kBF16) CheckRoundsOnce(kernels);
    }
  }
}

}  // namespace
}  // namespace jaxring::test
