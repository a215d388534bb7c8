// Every instruction set gives the same codes, the same sums and the same values, and touches nothing beyond them.
#include "quantize/quantize.h"

#include <algorithm>
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

// Elements of a row, and of three rows of which the last one is short. A row has stretches of blocks that are encoded
// side by side.
constexpr size_t kRow = 3000, kElements = 7000;
constexpr QuantFormat kFormats[] = {QuantFormat::kInt8, QuantFormat::kInt4, QuantFormat::kF8E4M3, QuantFormat::kBF16};

std::vector<float> Values(bool finite) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    // From the least subnormal numbers up to large ones, then sixteen blocks of ordinary ones.
    const size_t block = i / kQuantBlock % 22;
    values[i] = normal(random) * (block < 6 ? std::exp2(static_cast<float>(block) * 50 - 149) : 1.0f);
  }
  values[130] = std::numeric_limits<float>::max();
  if (finite) return values;
  values[5] = values[400] = std::numeric_limits<float>::quiet_NaN();
  values[6] = values[401] = std::numeric_limits<float>::infinity();
  values[7] = -std::numeric_limits<float>::infinity();
  return values;
}

// Codes, what they leave out, the sum's codes, what those leave out, the sum, and the values: as bytes.
std::vector<std::string> Everything(QuantFormat format, bool stochastic, const std::vector<float>& values,
                                    const OwnRow& own = {}) {
  const QuantShape shape{format, 3, kRow, own};
  const OwnValues own_values{own.row == OwnRow::kNone ? nullptr : values.data() + own.row * kRow,
                             std::min<size_t>(kRow, kElements - kRow * (own.row % 3))};
  const Rounding rounding{stochastic, 7, 9, 64};
  constexpr size_t kGuard = 64;
  std::vector<std::string> found;
  const auto buffer = [](size_t bytes) { return std::string(bytes + kGuard, '\x5a'); };
  const auto keep = [&](std::string&& bytes) {
    CHECK(bytes.substr(bytes.size() - kGuard) == std::string(kGuard, '\x5a'));
    found.push_back(std::move(bytes));
  };
  std::string codes = buffer(shape.encoded_rows() * shape.row_bytes()), error = buffer(4 * kElements);
  QuantizeRows(shape, codes.data(), reinterpret_cast<float*>(error.data()), values.data(), kElements, rounding);
  std::string again = buffer(shape.row_bytes()), lost = buffer(4 * kRow), sum = buffer(4 * kRow);
  std::string decoded = buffer(4 * kElements);
  auto* values_of = reinterpret_cast<float*>(decoded.data());
  SumRowsQuantized(shape, again.data(), reinterpret_cast<float*>(lost.data()),
                   {own.row == OwnRow::kNone ? nullptr : values_of + own.row * kRow}, codes.data(), 3, own_values,
                   rounding);
  SumRows(shape, reinterpret_cast<float*>(sum.data()), codes.data(), 0, own_values);
  DequantizeRows(shape, {values_of}, codes.data(), kElements);
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
        const auto own = Everything(format, stochastic, values, {2, true});
        for (const char* name : {"avx2", "avx512"}) {
          if (!ForceInstructionSet(name)) continue;
          const auto got = Everything(format, stochastic, values);
          if (finite) CHECK(Everything(format, stochastic, values, {2, true}) == own);
          CHECK(got[0] == want[0]);
          CHECK(got[1] == want[1]);
          if (finite) CHECK(got == want);
        }
      }
    }
  }
}

CASE("a rank's own row counts as it is, in the order of the rows, and is not encoded") {
  for (QuantFormat format : kFormats) {
    const std::vector<float> values = Values(true);
    const auto all = Everything(format, false, values);
    const size_t row_bytes = QuantShape{format, 3, kRow}.row_bytes();
    for (size_t row = 0; row < 3; ++row) {
      const auto skipped = Everything(format, false, values, {row, false});
      const auto left_out = Everything(format, false, values, {row, true});
      // All but the codes, whose own row is any bytes or is not there, and what is decoded where it was.
      for (size_t i : {1, 2, 3, 4}) CHECK(skipped[i] == left_out[i]);
      for (size_t other = 0, place = 0; other < 3; ++other) {
        if (other == row) continue;
        const std::string want = all[0].substr(other * row_bytes, row_bytes);
        CHECK(skipped[0].substr(other * row_bytes, row_bytes) == want);
        CHECK(left_out[0].substr(place++ * row_bytes, row_bytes) == want);
      }
      std::vector<float> error(kElements), decoded(kElements), sum(kRow);
      std::memcpy(error.data(), left_out[1].data(), 4 * kElements);
      std::memcpy(sum.data(), left_out[4].data(), 4 * kRow);
      std::memcpy(decoded.data(), all[5].data(), 4 * kElements);
      for (size_t i = 0; i < kRow; ++i) {
        float want = 0;
        for (size_t other = 0; other < 3; ++other) {
          const size_t at = kRow * other + i;
          const float part = at >= kElements ? 0 : other == row ? values[at] : decoded[at];
          want = other == 0 ? part : want + part;
          if (other == row && at < kElements) CHECK(error[at] == 0);
        }
        CHECK(sum[i] == want);
      }
      // The own row of the result has the values of the sum's codes.
      std::vector<float> total(kRow);
      DequantizeRows({format, 1, kRow}, {total.data()}, left_out[2].data(), kRow);
      const size_t count = std::min<size_t>(kRow, kElements - kRow * row);
      CHECK(std::memcmp(left_out[5].data() + 4 * kRow * row, total.data(), 4 * count) == 0);
      CHECK(skipped[5] == left_out[5]);
    }
  }
}

CASE("blocks that are encoded side by side have the codes that each has alone") {
  for (QuantFormat format : kFormats) {
    for (bool finite : {true, false}) {
      const std::vector<float> values = Values(finite);
      const QuantShape shape{format, 1, kElements}, one{format, 1, kQuantBlock};
      std::string codes(shape.row_bytes(), '\0'), alone(one.row_bytes(), '\0');
      QuantizeRows(shape, codes.data(), nullptr, values.data(), kElements, {});
      for (size_t block = 0; block < kElements / kQuantBlock; ++block) {
        QuantizeRows(one, alone.data(), nullptr, values.data() + block * kQuantBlock, kQuantBlock, {});
        CHECK(codes.substr(block * alone.size(), alone.size()) == alone);
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
    DequantizeRows(shape, {back.data()}, codes.data(), 128);
    CHECK(back == values);
  }
}

}  // namespace
}  // namespace jaxring::test
