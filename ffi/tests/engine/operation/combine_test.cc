// One pass over a step's sources writes the same value to ordinary destinations, to those with non-temporal stores and
// to untouched memory, and writes nothing outside of them.
#include "engine/operation/combine.h"

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

constexpr size_t kElements = 70001, kGuard = 32, kRoom = kElements + 2 * kGuard;
constexpr float kUntouched = -5;  // no sum has this value

// The memory of a result with guards around it. Its pages are not populated, except for those of the guards.
class GuardedBuffer {
 public:
  GuardedBuffer() : base_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    CHECK(base_ != MAP_FAILED);
    for (size_t i = 0; i < kGuard; ++i) all()[i] = all()[kRoom - 1 - i] = kUntouched;
  }
  ~GuardedBuffer() { munmap(base_, kBytes); }
  float* data() { return all() + kGuard; }
  void CheckGuards() {
    for (size_t i = 0; i < kGuard; ++i) {
      CHECK_EQ(all()[i], kUntouched);
      CHECK_EQ(all()[kRoom - 1 - i], kUntouched);
    }
  }

 private:
  static constexpr size_t kBytes = kRoom * sizeof(float);
  float* all() { return static_cast<float*>(base_); }
  void* base_;
};

Plan SumPlan(uint64_t divisor, bool exact) {
  Plan plan;
  plan.data.exact = exact;
  plan.data.dtype = DType::kF32;
  plan.data.kernels = FindKernels(DType::kF32, ReduceOp::kSum);
  plan.data.element_bytes = plan.data.partial_bytes = sizeof(float);
  plan.data.divisor = divisor;
  return plan;
}

// `flags` of each destination: bit 0 is `stream`, bit 1 `fresh`. With `in_place` the first destination is a source.
void Check(size_t source_count, const std::vector<int>& flags, bool in_place, uint64_t divisor, bool exact) {
  std::vector<GuardedBuffer> inputs(source_count), outputs(flags.size());
  std::vector<Source> sources;
  std::vector<Destination> destinations;
  std::vector<float> want(kElements, 0);
  for (size_t s = 0; s < source_count; ++s) {
    float* data = in_place && s == 0 ? outputs[0].data() : inputs[s].data();
    for (size_t i = 0; i < kElements; ++i) want[i] += data[i] = static_cast<float>((i * 7 + s) % 64);
    sources.push_back({data, false});
  }
  for (size_t d = 0; d < flags.size(); ++d) {
    destinations.push_back({outputs[d].data(), false, (flags[d] & 1) != 0, (flags[d] & 2) != 0});
  }
  const Plan plan = SumPlan(divisor, exact);
  Combine(plan, sources, destinations, kElements, sizeof(float), true);
  for (GuardedBuffer& output : outputs) {
    for (size_t i = 0; i < kElements; ++i) {
      CHECK_EQ(output.data()[i], divisor == 0 ? want[i] : want[i] / static_cast<float>(divisor));
    }
    output.CheckGuards();
  }
  for (GuardedBuffer& input : inputs) input.CheckGuards();
}

CASE("sums into every kind of destination") {
  for (size_t sources : {1, 2, 9}) {
    for (bool in_place : {false, true}) {
      for (uint64_t divisor : {0, 4}) {
        for (bool exact : {false, true}) {
          Check(sources, {0}, in_place, divisor, exact);
          Check(sources, {3}, in_place, divisor, exact);
          Check(sources, {0, 1}, in_place, divisor, exact);
          Check(sources, {1, 0, 3, 2}, in_place, divisor, exact);
          Check(sources, {3, 3}, in_place, divisor, exact);
        }
      }
    }
  }
}

// Sums of bfloat16 are accumulated in float32: both kinds of destination get the same bytes by either kind of stores.
CASE("partial sums and their results reach every kind of destination") {
  Plan plan = SumPlan(2, false);
  plan.data.dtype = DType::kBF16;
  plan.data.kernels = FindKernels(DType::kBF16, ReduceOp::kSum);
  plan.data.element_bytes = 2;
  std::vector<float> partial(kElements);
  std::vector<uint16_t> raw(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    partial[i] = static_cast<float>(i % 61) / 7;
    raw[i] = static_cast<uint16_t>(0x3f80 + i % 97);
  }
  const std::vector<Source> sources = {{partial.data(), true}, {raw.data(), false}};
  std::vector<std::string> found;
  for (bool stream : {false, true}) {
    GuardedBuffer sums, results;
    std::memset(results.data(), 0, kElements * sizeof(float));
    Combine(plan, sources, {{sums.data(), true, stream}, {results.data(), false, stream}}, kElements, 2, true);
    sums.CheckGuards();
    results.CheckGuards();
    CHECK_EQ(sums.data()[1], partial[1] + 1 + 1.0F / 128);
    for (GuardedBuffer* each : {&sums, &results}) {
      found.emplace_back(reinterpret_cast<const char*>(each->data()), kElements * sizeof(float));
    }
  }
  CHECK(found[0] == found[2]);
  CHECK(found[1] == found[3]);
  uint16_t second;
  std::memcpy(&second, found[1].data() + 2, 2);
  CHECK_EQ(second, uint16_t{0x3f13});  // (1/7 + 1.0078125) / 2, rounded to bfloat16
}

// An epilogue reads the elements of its operands from where the step's begin, and writes nothing outside of its states.
void CheckEpilogue(const std::vector<int>& flags, DType result, bool exact) {
  constexpr size_t kFirst = 17;
  Plan plan = SumPlan(2, exact);
  plan.epilogue = MakeEpilogue({"scale", "momentum"}, DType::kF32, result, {result, DType::kF32});
  const size_t bytes = plan.result_bytes();
  std::vector<GuardedBuffer> inputs(2), outputs(flags.size());
  // Room for the elements before the step's.
  std::vector<float> all_trace(kFirst + kElements), scalars = {4, 0.5, 0, 2, 0};
  std::vector<char> all_params((kFirst + kElements) * bytes);
  std::vector<float> wide_params(kFirst + kElements);
  for (size_t i = 0; i < wide_params.size(); ++i) {
    wide_params[i] = static_cast<float>(i % 32);
    all_trace[i] = static_cast<float>(i % 16);
  }
  plan.epilogue->result->store(all_params.data(), wide_params.data(), wide_params.size(), 0);
  std::vector<Source> sources;
  for (size_t s = 0; s < 2; ++s) {
    for (size_t i = 0; i < kElements; ++i) inputs[s].data()[i] = static_cast<float>((i * 7 + s) % 4 * 2);
    sources.push_back({inputs[s].data(), false});
  }
  std::vector<Destination> destinations;
  for (size_t d = 0; d < flags.size(); ++d) {
    destinations.push_back({outputs[d].data(), false, (flags[d] & 1) != 0, (flags[d] & 2) != 0});
  }
  EpilogueBuffers buffers;
  auto buffer = [](auto& values) {
    return EpilogueBuffers::Buffer{reinterpret_cast<char*>(values.data()), values.size() * sizeof(values[0])};
  };
  buffers.parameters = buffer(scalars);
  buffers.further = {buffer(all_params), buffer(all_trace)};
  const std::vector<float> before = all_trace;
  buffers.states = {buffer(all_trace)};
  CombineWithEpilogue(plan, sources, destinations, {buffers, kFirst}, kElements);
  std::vector<float> found(kElements);
  for (GuardedBuffer& output : outputs) {
    plan.epilogue->result->load(found.data(), output.data(), kElements);
    for (size_t i = 0; i < kElements; ++i) {
      const float gradient = 4 * (inputs[0].data()[i] + inputs[1].data()[i]) / 2;
      const float next = gradient + 2 * before[kFirst + i];
      CHECK_EQ(all_trace[kFirst + i], next);
      CHECK_EQ(found[i], wide_params[kFirst + i] - 0.5f * next);
    }
    if (bytes == sizeof(float)) output.CheckGuards();
  }
  for (size_t i = 0; i < kFirst; ++i) CHECK_EQ(all_trace[i], before[i]);
}

CASE("an epilogue reaches every kind of destination") {
  for (bool exact : {false, true}) {
    for (DType result : {DType::kF32, DType::kF16}) {
      CheckEpilogue({0}, result, exact);
      CheckEpilogue({3}, result, exact);
      CheckEpilogue({1, 0, 3, 2}, result, exact);
    }
  }
}

// The bits of what function `row` of the instruction set in use makes of some values, and of its states.
template <class T>
std::string BitsOf(size_t row) {
  constexpr size_t kSize = 37, kRoom = kSize + 64;  // with room for the end of a vector
  const Epilogue& function = Epilogues()[row];
  std::vector<std::vector<T>> arrays(1 + function.operands + function.states, std::vector<T>(kRoom));
  for (size_t a = 0; a < arrays.size(); ++a) {
    for (size_t i = 0; i < kSize; ++i) arrays[a][i] = T(1) / T(3 + (i * 13 + a * 5) % 29) - T(a == 0) / 20;
  }
  std::vector<T> parameters;
  for (size_t p = 0; p < function.parameters; ++p) parameters.push_back(T(1) / T(p + 3));
  std::vector<void*> further;
  for (size_t a = 1; a < arrays.size(); ++a) further.push_back(arrays[a].data());
  (sizeof(T) == 4 ? function.on_floats : function.on_doubles)(arrays[0].data(), further.data(), parameters.data(),
                                                              kSize);
  std::string bits = function.name;
  for (const std::vector<T>& array : arrays)
    bits.append(reinterpret_cast<const char*>(array.data()), kSize * sizeof(T));
  return bits;
}

CASE("every instruction set gives an epilogue the same bits") {
  const std::string best = InstructionSet();
  for (size_t row = 0; row < Epilogues().size(); ++row) {
    CHECK(ForceInstructionSet("baseline"));
    const std::string floats = BitsOf<float>(row), doubles = BitsOf<double>(row);
    for (const char* name : {"avx2", "avx512"}) {
      if (!ForceInstructionSet(name)) continue;  // this CPU or build lacks it
      CHECK(BitsOf<float>(row) == floats);
      CHECK(BitsOf<double>(row) == doubles);
    }
  }
  CHECK(ForceInstructionSet(best.c_str()));
}

// What CheckPlan says of a plan of two ranks of one process whose first rank has one step.
std::string Refusal(bool exact, uint8_t flags, std::shared_ptr<const PlanEpilogue> epilogue = nullptr,
                    StepKind kind = StepKind::kReduce) {
  Plan plan = SumPlan(0, exact);
  plan.epilogue = std::move(epilogue);
  plan.shape.block_elements = 8;
  plan.shape.tile_elements = 8;
  plan.group.ranks = {{0, 0, "rank 0"}, {0, 1, "rank 1"}};
  RankTable table;
  table.rank = 0;
  table.steps = {{static_cast<uint8_t>(kind), flags, static_cast<uint8_t>(Buffer::kInput),
                  static_cast<uint8_t>(Buffer::kOutput), 0, 0, 0, 0, 2, 0}};
  table.lane_begin = {0, 1};
  table.peers = {0, 1 | Peer::kMemory};
  plan.group.locals = {table, table};
  plan.group.locals[1].rank = 1;
  plan.group.locals[1].peers = {0 | Peer::kMemory, 1};
  try {
    CheckPlan(plan, 1 << 16);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

CASE("a plan of exact sums rounds once") {
  CHECK_EQ(Refusal(true, StepFlag::kFinal), std::string());
  CHECK_EQ(Refusal(false, 0), std::string());
  CHECK_EQ(Refusal(true, 0), std::string("rank 0, step 0: it rounds a part of an exact sum"));
  CHECK_EQ(Refusal(true, StepFlag::kFinal | StepFlag::kRecvPartial),
           std::string("rank 0, step 0: it has partial results of an exact sum"));
}

CASE("a plan with an epilogue applies it to complete values only") {
  const auto scale = MakeEpilogue({"scale"}, DType::kF32, DType::kBF16, {});
  const uint8_t applied = StepFlag::kFinal | StepFlag::kEpilogue;
  CHECK_EQ(Refusal(false, applied, scale), std::string());
  const std::string early =
      "rank 0, step 0: it applies an epilogue to a value that is not complete, or the plan has none";
  CHECK_EQ(Refusal(false, applied), early);
  CHECK_EQ(Refusal(false, StepFlag::kEpilogue, scale), early);
  CHECK_EQ(Refusal(false, applied | StepFlag::kSendPartial, scale), early);
  CHECK_EQ(Refusal(false, StepFlag::kFinal, scale),
           std::string("rank 0, step 0: it completes a value without the plan's epilogue"));
  CHECK_EQ(Refusal(false, 0, scale),
           std::string("rank 0, step 0: it writes to the output without the plan's epilogue"));
}

CASE("a plan with an epilogue sends each chunk by itself") {
  const auto scale = MakeEpilogue({"scale"}, DType::kF32, DType::kBF16, {});
  for (StepKind kind : {StepKind::kGather, StepKind::kSpread}) {
    CHECK_EQ(Refusal(false, 0, scale, kind),
             std::string("rank 0, step 0: it gathers or spreads chunks in a plan with an epilogue"));
  }
}

CASE("a step that fills with zeros does nothing else") {
  CHECK_EQ(Refusal(false, StepFlag::kZero, nullptr, StepKind::kMove), std::string());
  // It would be played as one that gathers, of which nothing else has been checked.
  CHECK_EQ(Refusal(false, StepFlag::kZero, nullptr, StepKind::kGather),
           std::string("rank 0, step 0: a ZERO step is a MOVE"));
}

// What MakeEpilogue says of functions and dtypes.
std::string Unfit(const std::vector<std::string>& functions, DType data, DType result, const std::vector<DType>& more) {
  try {
    MakeEpilogue(functions, data, result, more);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

CASE("functions and dtypes fit each other") {
  const DType f32 = DType::kF32, f64 = DType::kF64;
  CHECK_EQ(Unfit({"scale", "adam"}, DType::kBF16, f32, {f32, f32, f32}), std::string());
  CHECK_EQ(Unfit({"cube"}, f32, f32, {}), std::string("there is no epilogue 'cube'"));
  CHECK_EQ(Unfit({"adam"}, f32, f32, {f32, f32}), std::string("the epilogue 'adam' needs more operands"));
  CHECK_EQ(Unfit({"sgd"}, f32, f32, {f32, f32}), std::string("an epilogue has operands that no function takes"));
  CHECK_EQ(Unfit({"sgd"}, f32, f32, std::vector<DType>(9, f32)), std::string("an epilogue has too many operands"));
  const std::string otherwise = "an epilogue's dtype is no float, or accumulates otherwise than the data";
  CHECK_EQ(Unfit({"cast"}, f32, f64, {}), otherwise);
  CHECK_EQ(Unfit({"scale"}, DType::kInt32, DType::kInt32, {}), otherwise);
  CHECK_EQ(Unfit({"sgd"}, f64, f64, {f32}), otherwise);
}

}  // namespace
}  // namespace jaxring::test
