// All-reduces in codes: the bits of the arithmetic that they put together, and plans and calls that are refused.
#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "quantize/quantize.h"
#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

constexpr uint32_t kSlotBytes = 4096;
constexpr uint64_t kFirstWord = uint64_t{5} << 32;

using Floats = std::vector<float>;

PlanCodes CodesOf(QuantFormat format, bool stochastic) {
  return {format, FindQuantizers(format).block_bytes, stochastic, kFirstWord};
}

Settings InCodes(const PlanCodes& codes, uint64_t block) {
  Settings settings = Sized(block);
  settings.dtype = DType::kF32;
  settings.tile = kSlotBytes / 2 / codes.block_bytes * kQuantBlock;
  settings.piece_bytes = kQuantBlock * sizeof(float);
  settings.codes = codes;
  return settings;
}

Floats Values(size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(elements);
  for (float& value : values) value = normal(random);
  return values;
}

// What the two ranks get, and what is left out of each one's values, by whole arrays.
struct Expected {
  Floats sum, error[2];
};

Expected Whole(const PlanCodes& codes, const std::vector<Floats>& values, const uint32_t (&keys)[2][3],
               uint64_t divisor) {
  const size_t elements = values[0].size(), half = (QuantBlocks(elements) + 1) / 2 * kQuantBlock;
  Expected expected{Floats(elements), {Floats(elements), Floats(elements)}};
  const auto rounding = [&](int rank, uint32_t hop) {
    return Rounding{codes.stochastic, keys[rank][0], 2 * keys[rank][1] + hop, codes.first_word};
  };
  for (size_t owner = 0; owner < 2; ++owner) {
    const size_t other = 1 - owner, begin = std::min(owner * half, elements);
    const size_t count = std::min(half, elements - begin);
    const QuantShape shape{codes.format, 2, half, {other, true}};
    std::string sent(shape.row_bytes(), 0), total(shape.row_bytes(), 0);
    // Its own row, which it does not encode, has no errors there: those of the sum's codes are filled in below.
    Floats lost(elements);
    QuantizeRows(shape, sent.data(), lost.data(), values[other].data(), elements, rounding(static_cast<int>(other), 0));
    std::copy_n(lost.begin() + static_cast<int64_t>(begin), count, expected.error[other].begin() + begin);
    Floats left(half);
    SumRowsQuantized({codes.format, 2, half, {owner, true}}, total.data(), left.data(), {expected.sum.data() + begin},
                     sent.data(), divisor, {values[owner].data() + begin, count}, rounding(static_cast<int>(owner), 1));
    for (size_t i = 0; i < count; ++i) expected.error[owner][begin + i] = left[i] * (divisor != 0 ? 2 : 1);
  }
  return expected;
}

void Check(QuantFormat format, bool stochastic, size_t elements, uint64_t divisor, const char* schedule) {
  const PlanCodes codes = CodesOf(format, stochastic);
  const uint32_t keys[2][3] = {{7, 3, 0}, {7, 4, 1}};
  std::vector<Floats> values = {Values(elements, 1), Values(elements, 2)};
  Settings settings = InCodes(codes, elements);
  settings.divisor = divisor;
  Job job(2, Wire::kShared, kSlotBytes);
  Call call(&job, Find(schedule), settings);
  const Expected expected = Whole(codes, values, keys, divisor);
  for (int run = 0; run < 2; ++run) {
    Floats results[2], errors[2];
    Ends ends(call.Describe());
    for (int rank = 0; rank < 2; ++rank) {
      results[rank].assign(elements, -1);
      errors[rank].assign(elements, -1);
      Arrival arrival = Arriving(rank, run, values[rank], results[rank], ends.Expect());
      arrival.participant.codes = std::make_unique<CodeBuffers>();
      *arrival.participant.codes = {keys[rank], run == 0 ? errors[rank].data() : nullptr};
      call.site(rank)->Arrive(std::move(arrival));
    }
    ends.WaitOk();
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(results[rank] == expected.sum);
      CHECK(errors[rank] == (run == 0 ? expected.error[rank] : Floats(elements, -1)));
    }
  }
}

CASE("messages of codes give the bits of whole arrays of codes") {
  for (QuantFormat format : {QuantFormat::kInt8, QuantFormat::kInt4, QuantFormat::kF8E4M3, QuantFormat::kBF16}) {
    for (bool stochastic : {false, true}) {
      for (size_t elements : {100, 256, 300, 20'000})
        Check(format, stochastic, elements, 0, "all_reduce direct 2x1 x1");
    }
  }
  Check(QuantFormat::kInt8, true, 5'000, 2, "all_reduce direct 2x1 x1");
}

// What CheckPlan says of a plan of two processes that `change` has made.
std::string Refusal(const std::function<void(Plan&)>& change) {
  const Settings settings = InCodes(CodesOf(QuantFormat::kInt8, false), 1000);
  auto plan = MakePlan(Find("all_reduce direct 2x1 x1"), settings, 0, 1);
  change(*plan);
  try {
    CheckPlan(*plan, kSlotBytes);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

CASE("a plan in codes is an all-reduce of float32 of two ranks in whole blocks") {
  CHECK_EQ(Refusal([](Plan&) {}), std::string());
  const std::string other = "a plan in codes is not one of a sum of float32 of two ranks, in whole blocks";
  CHECK_EQ(Refusal([](Plan& plan) { plan.data.dtype = DType::kBF16; }), other);
  CHECK_EQ(Refusal([](Plan& plan) { plan.data.kernels = nullptr; }), other);
  CHECK_EQ(Refusal([](Plan& plan) { plan.shape.tile_elements += 1; }), other);
  CHECK_EQ(Refusal([](Plan& plan) { plan.shape.piece_bytes = 64; }), other);
  CHECK_EQ(Refusal([](Plan& plan) { plan.group.ranks.push_back({2, 0, "rank 2"}); }), other);
  CHECK_EQ(Refusal([](Plan& plan) { plan.shape.tile_elements *= 4; }),
           std::string("rank 0, step 0: its messages do not fit a slot"));
}

CASE("a plan in codes sends, completes and receives") {
  const std::string none = "it is none of an all-reduce in codes", from = "its codes are not those of the other rank";
  const auto step = [](Plan& plan, size_t i) -> Step& { return plan.group.locals[0].steps.at(i); };
  CHECK_EQ(Refusal([&](Plan& plan) { step(plan, 1).flags = 0; }), "rank 0, step 1: " + none);
  CHECK_EQ(Refusal([&](Plan& plan) { step(plan, 1).recv_count = 1; }), "rank 0, step 1: " + none);
  CHECK_EQ(Refusal([&](Plan& plan) { step(plan, 1).send_count = 0; }), "rank 0, step 1: " + none);
  for (StepKind kind : {StepKind::kGather, StepKind::kSpread}) {
    CHECK_EQ(Refusal([&](Plan& plan) { step(plan, 0).kind = static_cast<uint8_t>(kind); }),
             std::string("rank 0, step 0: it gathers or spreads chunks in a plan in codes"));
  }
  CHECK_EQ(Refusal([&](Plan& plan) {
             const Step& completes = step(plan, 1);
             plan.group.locals[0].peers[completes.recv_begin] = 1;
           }),
           "rank 0, step 1: " + from);
  CHECK_EQ(Refusal([&](Plan& plan) {
             const Step& sends = step(plan, 0);
             plan.group.locals[0].peers[sends.send_begin] = 0;
           }),
           std::string("rank 0, step 0: its codes go not to the other rank"));
}

// A call without the buffers that a plan in codes needs, or with those that no plan asked for.
CASE("buffers of codes that do not fit") {
  Job job(2, Wire::kShared, kSlotBytes);
  const PlanCodes codes = CodesOf(QuantFormat::kInt8, false);
  const uint32_t key[3] = {};
  for (bool coded : {true, false}) {
    Settings settings = InCodes(codes, 1000);
    settings.tile = kQuantBlock;
    if (!coded) settings.codes.reset();
    Call call(&job, Find("all_reduce direct 2x1 x1"), settings);
    Floats in(1000), out[2] = {Floats(1000), Floats(1000)};
    Ends ends("misfit");
    for (int rank = 0; rank < 2; ++rank) {
      Arrival arrival = Arriving(rank, 0, in, out[rank], ends.Expect());
      if (!coded) arrival.participant.codes = std::make_unique<CodeBuffers>(CodeBuffers{key, nullptr});
      call.site(rank)->Arrive(std::move(arrival));
    }
    for (const Status& status : ends.Wait())
      CHECK(status.code == Code::kInternal && Says(status, "codes do not fit the plan"));
  }
}

}  // namespace
}  // namespace jaxring::test
