// Every instruction set gives the same codes, the same sums and the same values, and touches nothing beyond them.
#include "quantize/quantize.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "reduce/kernels.h"
#include "tests/support/cases.h"
#include "tests/support/check.h"

namespace jaxring::test {
namespace {

constexpr size_t kElements = 700;
constexpr QuantFormat kFormats[] = {QuantFormat::kInt8, QuantFormat::kInt4, QuantFormat::kF8E4M3, QuantFormat::kBF16};

std::vector<float> Values(bool finite) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const size_t block = i / 128;
    values[i] = normal(random) * std::exp2(static_cast<float>(block) * 50 - 149);
  }
  values[130] = std::numeric_limits<float>::max();
  if (finite) return values;
  values[5] = values[400] = std::numeric_limits<float>::quiet_NaN();
  values[6] = values[401] = std::numeric_limits<float>::infinity();
  values[7] = -std::numeric_limits<float>::infinity();
  return values;
}

// Codes, what they leave out, the sum's codes, what those leave out, the sum, and the values: as bytes.
std::vector<std::string> Everything(QuantFormat format, bool stochastic, const std::vector<float>& values) {
  const QuantShape shape{format, 3, 300};
  const Rounding rounding{stochastic, 7, 9, 64};
  constexpr size_t kGuard = 64;
  std::vector<std::string> found;
  const auto buffer = [](size_t bytes) { return std::string(bytes + kGuard, '\x5a'); };
  const auto keep = [&](std::string&& bytes) {
    CHECK(bytes.substr(bytes.size() - kGuard) == std::string(kGuard, '\x5a'));
    found.push_back(std::move(bytes));
  };
  std::string codes = buffer(3 * shape.row_bytes()), error = buffer(4 * kElements);
  QuantizeRows(shape, codes.data(), reinterpret_cast<float*>(error.data()), values.data(), kElements, rounding);
  std::string again = buffer(shape.row_bytes()), lost = buffer(4 * 300), sum = buffer(4 * 300);
  SumRowsQuantized(shape, again.data(), reinterpret_cast<float*>(lost.data()), codes.data(), 3, rounding);
  SumRows(shape, reinterpret_cast<float*>(sum.data()), codes.data(), 0);
  std::string decoded = buffer(4 * kElements);
  DequantizeRows(shape, reinterpret_cast<float*>(decoded.data()), codes.data(), kElements);
  for (std::string* each : {&codes, &error, &again, &lost, &sum, &decoded}) keep(std::move(*each));
  return found;
}

CASE("every instruction set gives the same bits") {
  for (QuantFormat format : kFormats) {
    for (bool stochastic : {false, true}) {
      // Which NaN a sum of several gives is the processor's choice, so that sums are compared of finite values.
      for (bool finite : {true, false}) {
        const std::vector<float> values = Values(finite);
        CHECK(ForceInstructionSet("baseline"));
        const auto want = Everything(format, stochastic, values);
        for (const char* name : {"avx2", "avx512"}) {
          if (!ForceInstructionSet(name)) continue;
          const auto got = Everything(format, stochastic, values);
          CHECK(got[0] == want[0]);
          CHECK(got[1] == want[1]);
          if (finite) CHECK(got == want);
        }
      }
    }
  }
}

CASE("a value that is an exact multiple comes back as it was") {
  for (QuantFormat format : {QuantFormat::kInt8, QuantFormat::kInt4}) {
    const int limit = format == QuantFormat::kInt8 ? 127 : 7;
    std::vector<float> values(128), back(128);
    for (int i = 0; i < 128; ++i) values[i] = static_cast<float>(i % (2 * limit + 1) - limit) * 0.5f;
    values[0] = static_cast<float>(limit) * 0.5f;
    const QuantShape shape{format, 1, 128};
    std::vector<char> codes(shape.row_bytes());
    QuantizeRows(shape, codes.data(), nullptr, values.data(), 128, {});
    DequantizeRows(shape, back.data(), codes.data(), 128);
    CHECK(back == values);
  }
}

}  // namespace
}  // namespace jaxring::test
