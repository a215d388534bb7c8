// NaN and infinity are found in every dtype that has them, and reported with rank, element and call.
#include "engine/records/finite.h"

#include <cmath>
#include <limits>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/reduce_reference.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

CASE("every dtype") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (DType dtype : {DType::kF8E4M3FN, DType::kF8E5M2, DType::kF16, DType::kBF16, DType::kF32, DType::kF64,
                      DType::kC64, DType::kC128}) {
    const size_t bytes = ElementBytes(dtype);
    for (uint64_t n : {1, 511, 512, 513, 2000}) {
      Buffer buffer(n * bytes);
      for (uint64_t i = 0; i < n; ++i) Write(dtype, buffer.data() + i * bytes, {1.5, 1.5, 0});
      CHECK(!FirstNonFinite(dtype, buffer.data(), n));
      for (uint64_t where : {n - 1, n / 2, uint64_t{0}}) {
        for (double bad : {inf, -inf, nan}) {
          if (dtype == DType::kF8E4M3FN && !std::isnan(bad)) continue;
          Write(dtype, buffer.data() + where * bytes, {bad, 1, 0});
          const auto found = FirstNonFinite(dtype, buffer.data(), n);
          CHECK(found.has_value());
          CHECK_EQ(found->element, where);
          CHECK_EQ(found->nan, std::isnan(bad));
        }
      }
    }
  }
  const std::vector<int32_t> all(64, -1);
  for (DType dtype : {DType::kInt32, DType::kUInt8, DType::kBool}) CHECK(!FirstNonFinite(dtype, all.data(), 64));
}

struct Outcome {
  std::vector<Status> ends;
  std::vector<std::string> warnings;
};

// An all-reduce of four ranks in two processes; rank 2's element 5 is `value`, the others' largest.
Outcome Play(EngineOptions::NonFinite what, float value) {
  EngineOptions options{2, 256, 20, 20};
  options.non_finite = what;
  Job job(2, Wire::kShared, options, 2);
  Settings settings;
  settings.dtype = DType::kF32;
  settings.block = 40;
  settings.protocol = Protocol::kSimple;
  Call call(&job, Find("all_reduce ring 2x2 x1"), settings);
  auto inputs = Inputs(call, 3);
  auto outputs = Outputs(call);
  reinterpret_cast<float*>(inputs[2].data())[5] = value;
  Outcome outcome;
  // Two executions give one warning.
  for (int run = 1; run <= 2; ++run) {
    Ends ends;
    for (int rank = 0; rank < 4; ++rank)
      call.Arrive(rank, run, inputs[rank].data(), outputs[rank].data(), ends.Expect());
    for (const Status& status : ends.Wait()) outcome.ends.push_back(status);
  }
  for (int p = 0; p < 2; ++p) {
    for (const std::string& text : job.engine(p).warnings().Take()) outcome.warnings.push_back(text);
  }
  return outcome;
}

bool Says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::cerr << "it says: " << text << std::endl;
  return false;
}

CASE("ranks and calls are named") {
  using NonFinite = EngineOptions::NonFinite;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string operand =
      "test all_reduce ring 2x2 x1, execution 0: the operand of rank 2 (process 1) holds NaN, first at element 5.";
  for (const Status& status : Play(NonFinite::kIgnore, nan).ends) CHECK(status.ok());
  Outcome warned = Play(NonFinite::kWarn, nan);
  for (const Status& status : warned.ends) CHECK(status.ok());
  // The process whose operand has the value names it; the other one finds it in its results.
  CHECK_EQ(warned.warnings.size(), 2u);
  CHECK(Says(warned.warnings[0],
             "execution 0: the result of rank 0 (process 0) holds NaN, first at element 5, and no operand of"));
  CHECK(Says(warned.warnings[1], operand));
  Outcome failed = Play(NonFinite::kFail, nan);
  CHECK(failed.warnings.empty());
  for (size_t i = 0; i < 4; ++i) {
    CHECK(failed.ends[i].code == Code::kFailedPrecondition);
    CHECK(Says(failed.ends[i].message, operand));
  }
  for (const Status& status : Play(NonFinite::kFail, 1.0f).ends) CHECK(status.ok());
}

CASE("operands of a buffer for each block") {
  EngineOptions options{2, 256, 20, 20};
  options.non_finite = EngineOptions::NonFinite::kFail;
  Job job(1, Wire::kShared, options, 2);
  Settings settings;
  settings.dtype = DType::kF32;
  settings.block = 10;
  Call call(&job, Find("all_to_all direct 1x4 x1"), settings);
  std::vector<std::vector<float>> buffers(4 * 8, std::vector<float>(10, 1.0f));
  buffers[1 * 8 + 2][3] = std::numeric_limits<float>::infinity();
  Ends ends;
  for (int rank = 0; rank < 4; ++rank) {
    auto blocks = std::make_unique<char*[]>(8);
    for (int i = 0; i < 8; ++i) blocks[i] = reinterpret_cast<char*>(buffers[rank * 8 + i].data());
    call.Arrive(rank, 1, std::move(blocks), ends.Expect());
  }
  for (const Status& status : ends.Wait()) {
    CHECK(Says(status.message, "the operand of rank 1 (process 0) holds infinity, first at element 23."));
  }
}

}  // namespace
}  // namespace jaxring::test
