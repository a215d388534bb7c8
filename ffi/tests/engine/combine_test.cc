// One pass over a step's sources writes the same value to ordinary destinations, to those with non-temporal stores and
// to untouched memory, and writes nothing outside of them.
#include "engine/operation/combine.h"

#include <sys/mman.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

constexpr size_t kElements = 70001, kGuard = 32, kRoom = kElements + 2 * kGuard;
constexpr float kUntouched = -5;  // no sum has this value

// The memory of a result with guards around it. Its pages are not populated, except for those of the guards.
class Place {
 public:
  Place() : base_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    CHECK(base_ != MAP_FAILED);
    for (size_t i = 0; i < kGuard; ++i) all()[i] = all()[kRoom - 1 - i] = kUntouched;
  }
  ~Place() { munmap(base_, kBytes); }
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
  plan.exact = exact;
  plan.dtype = DType::kF32;
  plan.kernels = FindKernels(DType::kF32, ReduceOp::kSum);
  plan.element_bytes = plan.partial_bytes = sizeof(float);
  plan.divisor = divisor;
  return plan;
}

// `flags` of each destination: bit 0 is `stream`, bit 1 `fresh`. With `in_place` the first destination is a source.
void Check(size_t source_count, const std::vector<int>& flags, bool in_place, uint64_t divisor, bool exact) {
  std::vector<Place> inputs(source_count), outputs(flags.size());
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
  Combine(plan, sources, destinations, kElements, true);
  for (Place& place : outputs) {
    for (size_t i = 0; i < kElements; ++i) {
      CHECK_EQ(place.data()[i], divisor == 0 ? want[i] : want[i] / static_cast<float>(divisor));
    }
    place.CheckGuards();
  }
  for (Place& place : inputs) place.CheckGuards();
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

// What CheckPlan says of a plan of two ranks of one process whose first rank has one step.
std::string Refusal(bool exact, uint8_t flags) {
  Plan plan = SumPlan(0, exact);
  plan.block_elements = 8;
  plan.tile_elements = 8;
  plan.ranks = {{0, 0, "rank 0"}, {0, 1, "rank 1"}};
  RankTable table;
  table.rank = 0;
  table.steps = {{static_cast<uint8_t>(StepKind::kReduce), flags, static_cast<uint8_t>(Buffer::kInput),
                  static_cast<uint8_t>(Buffer::kOutput), 0, 0, 0, 0, 2, 0}};
  table.lane_begin = {0, 1};
  table.peers = {0, 1 | Peer::kMemory};
  plan.locals = {table, table};
  plan.locals[1].rank = 1;
  plan.locals[1].peers = {0 | Peer::kMemory, 1};
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

}  // namespace
}  // namespace jaxring::test
