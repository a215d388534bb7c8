// Reductions with an epilogue, by the CUDA kernels' own source on the shim: results and states must have the CPU
// engine's bits, by each protocol, for each function, and for results that are narrower and wider than the data.
#include "tests/cuda/cuda_epilogue.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/epilogue_args.h"
#include "tests/cuda/cuda_compare.h"
#include "tests/cuda/cuda_launch.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

struct Sample {
  std::vector<std::string> functions;
  DType data, result;
  std::vector<DType> further;
  bool mean = false;
  ReduceOp op = ReduceOp::kSum;
};

constexpr DType kF8 = DType::kF8E5M2, kFN = DType::kF8E4M3FN, kBF = DType::kBF16, kF16 = DType::kF16,
                kF32 = DType::kF32, kF64 = DType::kF64;

const std::vector<Sample> kValues = {
    {{"scale"}, kF32, kF32, {}},
    {{"scale", "clip", "cast"}, kF32, kBF, {}, true},
    {{"cast"}, kF32, kF8, {}},
    {{"scale"}, kBF, kBF, {}, true},
    {{"cast"}, kBF, kF32, {}},
    {{"cast"}, kF16, kFN, {}},
    {{"clip"}, kF16, kF16, {}, false, ReduceOp::kMax},
    {{"scale", "scale"}, kFN, kFN, {}},
    {{"cast"}, kF8, kF16, {}, false, ReduceOp::kMin},
    {{"cast"}, kFN, kF32, {}, true},
    {{"scale", "clip"}, kF64, kF64, {}, true},
    {{"clip", "cast"}, kF64, kF64, {}, false, ReduceOp::kProd},
};

const std::vector<Sample> kSteps = {
    {{"sgd"}, kF32, kF32, {kF32}, true},
    {{"clip", "sgd"}, kBF, kF32, {kF32}},
    {{"sgd"}, kF32, kF8, {kF8}},
    {{"momentum"}, kF32, kF32, {kF32, kF32}},
    {{"scale", "momentum"}, kFN, kF16, {kF16, kBF}, true},
    {{"adam"}, kF32, kF32, {kF32, kF32, kF32}, true},
    {{"adam"}, kBF, kF32, {kF32, kFN, kF32}},
    {{"scale", "adam"}, kF16, kBF, {kBF, kF16, kF32}, true},
    {{"adam"}, kF64, kF64, {kF64, kF64, kF64}},
    {{"momentum"}, kF64, kF64, {kF64, kF64}, true},
};

// Whether each rank completes its own result, and no other.
bool Keeps(const Schedule& schedule) {
  for (const RankTable& table : schedule.tables) {
    for (const Step& step : table.steps) {
      const bool own = step.dst_buffer == static_cast<uint8_t>(jaxring::Buffer::kOutput) && step.send_count == 0;
      if ((step.flags & StepFlag::kFinal) && !own) return false;
    }
  }
  return true;
}

// The arrays of one rank's epilogue.
struct Arrays {
  Arrays(const PlanEpilogue& epilogue, uint64_t elements, int rank, uint64_t seed)
      : parameters(std::max<size_t>(1, epilogue.parameter_bytes())) {
    for (size_t i = 0; i < epilogue.parameters; ++i) {
      const double value = (i % 3 == 0 ? -0.7 : 1.3) / static_cast<double>(i + 1);
      if (epilogue.doubles) {
        std::memcpy(parameters.data() + 8 * i, &value, 8);
      } else {
        const float narrow = static_cast<float>(value);
        std::memcpy(parameters.data() + 4 * i, &narrow, 4);
      }
    }
    for (size_t i = 0; i < epilogue.further.size(); ++i) {
      Settings settings;
      settings.dtype = epilogue.further[i].dtype;
      settings.block = elements;
      further.push_back(Input(settings, 1, rank, seed + 10 * (i + 1)));
      if (epilogue.further[i].state >= 0) states.emplace_back(further.back().size());
    }
  }
  EpilogueBuffers Buffers(const PlanEpilogue& epilogue) {
    const auto of = [](Buffer& buffer) { return EpilogueBuffers::Buffer{buffer.data(), buffer.size()}; };
    EpilogueBuffers buffers;
    buffers.parameters = {parameters.data(), epilogue.parameter_bytes()};
    for (Buffer& each : further) buffers.further.push_back(of(each));
    for (Buffer& each : states) buffers.states.push_back(of(each));
    return buffers;
  }
  Buffer parameters;
  std::vector<Buffer> further, states;
};

using Results = std::vector<std::vector<Buffer>>;  // of each rank: the output, then the states

void CheckResults(const std::string& what, const PlanEpilogue& epilogue, const Results& got, const Results& want) {
  std::vector<DType> dtypes = {epilogue.result_dtype};
  for (const auto& further : epilogue.further) {
    if (further.state >= 0) dtypes.push_back(further.dtype);
  }
  for (size_t rank = 0; rank < want.size(); ++rank) {
    for (size_t r = 0; r < want[rank].size(); ++r) {
      const size_t element = ElementBytes(dtypes[r]);
      got[rank][r].CheckGuards();
      CHECK_EQ(got[rank][r].size(), want[rank][r].size());
      for (size_t i = 0; i < want[rank][r].size(); i += element) {
        if (SameElement(dtypes[r], got[rank][r].data() + i, want[rank][r].data() + i)) continue;
        std::cerr << what << ", rank " << rank << ", result " << r << ", element " << i / element << std::endl;
        Fail(__FILE__, __LINE__, "the CUDA engine gives the CPU engine's bits");
      }
    }
  }
}

Results OnCpu(Call& call, const std::vector<Buffer>& inputs, uint64_t seed) {
  const PlanEpilogue& epilogue = *call.settings().epilogue;
  std::vector<Buffer> outputs = Outputs(call);
  std::vector<Arrays> arrays;
  for (int rank = 0; rank < call.schedule().ranks(); ++rank) {
    arrays.emplace_back(epilogue, call.settings().block * call.schedule().out_blocks, rank, seed);
  }
  Ends ends(call.Describe());
  for (int rank = 0; rank < call.schedule().ranks(); ++rank) {
    call.Arrive(rank, 0, inputs[rank].data(), outputs[rank].data(),
                std::make_unique<EpilogueBuffers>(arrays[rank].Buffers(epilogue)), ends.Expect());
  }
  ends.WaitOk();
  Results results(outputs.size());
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    results[rank].push_back(std::move(outputs[rank]));
    for (Buffer& state : arrays[rank].states) results[rank].push_back(std::move(state));
  }
  return results;
}

// `in_place`: results take the memory of what they replace, as XLA has it where that is donated. `longer`: see
// CudaPlan.
void Check(Call& call, const std::vector<Buffer>& inputs, const Results& expected, cuda::Protocol protocol,
           uint32_t threads, bool in_place, uint64_t seed, uint64_t longer) {
  static cuda::simt::Machine machine;
  const Schedule& schedule = call.schedule();
  const Settings& settings = call.settings();
  const PlanEpilogue& epilogue = *settings.epilogue;
  CudaPlan plan(schedule, settings, 2, longer);
  Cluster cluster({schedule.ranks(), static_cast<uint32_t>(schedule.nlanes), schedule.placement, protocol, 4,
                   plan.slot_bytes(protocol)});
  std::vector<Buffer> outputs = Outputs(call);
  std::vector<Arrays> arrays;
  std::vector<cuda::simt::Stream> streams(schedule.ranks());
  const bool steps = !epilogue.further.empty();
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    arrays.emplace_back(epilogue, settings.block * schedule.out_blocks, rank, seed / 2);
    Arrays& own = arrays.back();
    const char* in = inputs[rank].data();
    EpilogueBuffers buffers = own.Buffers(epilogue);
    if (in_place && steps) {
      std::memcpy(outputs[rank].data(), own.further[0].data(), outputs[rank].size());
      buffers.further[0].data = outputs[rank].data();
      for (size_t i = 0; i < epilogue.further.size(); ++i) {
        const int state = epilogue.further[i].state;
        if (state < 0) continue;
        std::memcpy(own.states[state].data(), own.further[i].data(), own.further[i].size());
        buffers.further[i].data = buffers.states[state].data;
      }
    } else if (in_place && schedule.collective == "all_reduce" && epilogue.result_dtype == settings.dtype) {
      std::memcpy(outputs[rank].data(), in, outputs[rank].size());
      in = outputs[rank].data();
    }
    const cuda::Args args = plan.Args(cluster, rank, in, outputs[rank].data());
    streams[rank].push_back(LaunchOf(cuda::EpilogueOn(epilogue, buffers), args, threads));
  }
  CHECK(machine.Run(streams, {seed % 2 == 0 ? 0 : seed, {}}));
  for (int rank = 0; rank < schedule.ranks(); ++rank) CHECK_EQ(cluster.status(rank).fault, 0u);
  Results results(outputs.size());
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    results[rank].push_back(std::move(outputs[rank]));
    for (Buffer& state : arrays[rank].states) results[rank].push_back(std::move(state));
  }
  CheckResults(call.Describe() + ", " + settings.epilogue->stages.front().function->name + ", cuda protocol " +
                   std::to_string(static_cast<int>(protocol)) + (in_place ? ", in place" : ""),
               epilogue, results, expected);
}

// The same schedule, whose messages hold sums that are rounded to the data's dtype, as one of a user's may have them.
Schedule Rounded(const Schedule& schedule) {
  Schedule rounded = schedule;
  for (RankTable& table : rounded.tables) {
    for (Step& step : table.steps) {
      step.flags &= static_cast<uint8_t>(~(StepFlag::kRecvPartial | StepFlag::kSendPartial));
    }
  }
  return rounded;
}

void CheckSamples(const Schedule& schedule, const std::vector<Sample>& samples, Job& several, Job& one, uint64_t* turn,
                  uint64_t longer = 1) {
  const Schedule with = WithEpilogue(schedule);
  for (const Sample& sample : samples) {
    const uint64_t seed = (*turn)++;
    // Under ThreadSanitizer, where all of them take five minutes, a third.
    if (LeftOut(seed) || (cuda::simt::kThreadSanitizer && Random(seed) % 3 != 0)) continue;
    const auto epilogue = MakeEpilogue(sample.functions, sample.data, sample.result, sample.further);
    // Most blocks end within a pack, and begin within one where there are several; some need several tiles.
    const uint64_t narrow = std::min(ElementBytes(sample.data), epilogue->result->element_bytes);
    const auto pieces = static_cast<uint64_t>(schedule.pieces);
    uint64_t block = seed % 4 == 1 ? pieces * (1024 / narrow + 9) : seed % 8 == 3 ? 3 : 67 * pieces + 5;
    if (longer > 1) block = pieces * (longer * 512 / narrow + 9);  // a whole slice and a part of one
    Settings settings = SettingsOf(with, sample.data, sample.op, sample.mean, block);
    settings.epilogue = epilogue;
    Call call(with.processes() == 1 ? &one : &several, with, settings);
    const std::vector<Buffer> inputs = seed % 5 == 0 ? AnyBits(call, seed + 1) : Inputs(call, seed);
    const Results expected = OnCpu(call, inputs, seed / 2);
    for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL}) {
      if (!schedule.messages() && protocol != cuda::Protocol::kSimple) continue;
      const uint32_t threads = seed % 3 == 0 && longer == 1 ? 2 * cuda::kWarp : cuda::kWarp;
      Check(call, inputs, expected, protocol, threads, seed % 4 < 2, seed, longer);
    }
  }
}

CASE("all-reduces apply it to the bits of the CPU engine") {
  uint64_t turn = 0;
  for (int ranks : {2, 3, 4}) {
    Job several(ranks, Wire::kShared), one(1, Wire::kShared);
    for (const Schedule& schedule : MatrixSchedules()) {
      if (schedule.ranks() == ranks) CheckSamples(schedule, kValues, several, one, &turn);
    }
  }
  CHECK(turn > 100);
}

CASE("sums that are rounded on their way") {
  uint64_t turn = 0;
  Job several(4, Wire::kShared), one(1, Wire::kShared);
  for (const char* name : {"all_reduce ring 4x1 x1", "all_reduce tree 4x1 x1"}) {
    CheckSamples(Rounded(Find(name)), kValues, several, one, &turn);
  }
}

CASE("slices that a warp takes in several chunks") {
  uint64_t turn = 0;
  Job several(4, Wire::kShared), one(1, Wire::kShared);
  CheckSamples(Find("all_reduce ring 4x1 x1"), kValues, several, one, &turn, kLonger);
  CheckSamples(Find("reduce_scatter ring 4x1 x1"), kSteps, several, one, &turn, kLonger);
}

CASE("each function of a reduce-scatter has the bits of the CPU engine") {
  uint64_t turn = 0;
  Job one(1, Wire::kShared);
  for (const Schedule& schedule : Schedules()) {
    if (schedule.collective != "reduce_scatter" || schedule.half != Half::kBoth || !Keeps(schedule)) continue;
    if (schedule.group > 1 || schedule.ranks() > 4) continue;
    Job several(schedule.processes(), Wire::kShared);
    CheckSamples(schedule, kSteps, several, one, &turn);
    CheckSamples(schedule, kValues, several, one, &turn);
  }
  CHECK(turn > 100);
}

}  // namespace
}  // namespace jaxring::test
