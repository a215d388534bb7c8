// Executes every dumped schedule with one engine for each process, and compares with the plain reference.
#include <array>
#include <map>
#include <memory>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/schedules.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

// Uses blocks of `block` elements, or with `tiles` of so many tiles in each piece and a few elements.
struct Sample {
  uint64_t block, tiles;
  DType dtype;
  ReduceOp op;
  bool mean;
};

constexpr std::array kSamples = {
    Sample{0, 0, DType::kInt32, ReduceOp::kSum, false}, Sample{1, 0, DType::kBF16, ReduceOp::kSum, false},
    Sample{37, 0, DType::kF32, ReduceOp::kSum, true},   Sample{0, 3, DType::kInt32, ReduceOp::kSum, false},
    Sample{0, 3, DType::kF32, ReduceOp::kSum, false},   Sample{0, 2, DType::kBF16, ReduceOp::kSum, true},
    Sample{0, 2, DType::kInt8, ReduceOp::kMax, false},  Sample{0, 1, DType::kC128, ReduceOp::kSum, false},
};

std::vector<Buffer> Play(Call& call, const std::vector<Buffer>& inputs, bool in_place, int first) {
  const int n = call.schedule().ranks();
  std::vector<Buffer> outputs = Outputs(call);
  Ends ends(call.Describe());
  for (int i = 0; i < n; ++i) {
    const int rank = (first + i) % n;
    const void* in = inputs[rank].data();
    if (in_place) {
      std::memcpy(outputs[rank].data(), in, inputs[rank].size());
      in = outputs[rank].data();
    }
    call.Arrive(rank, first, in, outputs[rank].data(), ends.Expect());
  }
  ends.WaitOk();
  return outputs;
}

// With a buffer for each block of a rank's operand and result.
std::vector<Buffer> PlayApart(Call& call, const std::vector<Buffer>& inputs) {
  const int n = call.schedule().ranks();
  const size_t bytes = inputs[0].size() / n;
  std::vector<std::vector<Buffer>> in(n), out(n);
  Ends ends(call.Describe());
  for (int rank = 0; rank < n; ++rank) {
    auto blocks = std::make_unique<char*[]>(2 * n);
    for (int block = 0; block < n; ++block) {
      std::memcpy(in[rank].emplace_back(bytes).data(), inputs[rank].data() + block * bytes, bytes);
      blocks[block] = in[rank][block].data();
      blocks[n + block] = out[rank].emplace_back(bytes).data();
    }
    call.Arrive(rank, 1, std::move(blocks), ends.Expect());
  }
  ends.WaitOk();
  std::vector<Buffer> outputs = Outputs(call);
  for (int rank = 0; rank < n; ++rank) {
    for (int block = 0; block < n; ++block) {
      std::memcpy(outputs[rank].data() + block * bytes, out[rank][block].data(), bytes);
    }
  }
  return outputs;
}

// Executes twice, the second time in place or with a buffer for each block if that is allowed: the bits are equal both
// times, and on all ranks if the schedule says so.
void Check(Job& job, const Schedule& schedule, const Sample& sample, Protocol protocol, uint64_t tile) {
  tile /= static_cast<uint64_t>(schedule.group);  // so that a message of several chunks fits
  Settings settings;
  settings.dtype = sample.dtype;
  settings.op = sample.op;
  settings.divisor = sample.mean ? schedule.ranks() : 0;
  settings.block = sample.block + sample.tiles * (tile * schedule.pieces + 7);
  settings.protocol = protocol;
  settings.tile = tile;
  Call call(&job, schedule, settings);
  const std::vector<Buffer> inputs = Inputs(call, sample.tiles);
  const bool same = schedule.collective == "all_reduce";
  const bool apart = schedule.collective == "all_to_all";
  std::vector<Buffer> first = Play(call, inputs, false, 0);
  std::vector<Buffer> second = apart ? PlayApart(call, inputs) : Play(call, inputs, same, 1);
  Reference reference(call, inputs);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    if (rank == 0 || !same) reference.Check(rank, first[rank]);
    CHECK(first[rank] == second[rank]);
    if (same) CHECK(first[rank] == first[0]);
  }
}

class Jobs {
 public:
  Job& Get(int processes, Wire wire) {
    std::unique_ptr<Job>& job = jobs_[{processes, wire}];
    if (!job) job = std::make_unique<Job>(processes, wire);
    return *job;
  }

 private:
  std::map<std::pair<int, Wire>, std::unique_ptr<Job>> jobs_;
};

#if defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

// Messages use LL and Simple, over shared memory and TCP: each schedule uses all four, but not every pairing.
CASE("all collectives and algorithms") {
  Jobs jobs;
  size_t number = 0;
  for (const Schedule& schedule : Schedules()) {
    if (schedule.half != Half::kBoth) continue;
    ++number;
    for (Wire wire : {Wire::kShared, Wire::kTcp}) {
      if (schedule.processes() == 1 && wire == Wire::kTcp) continue;
      Job& job = jobs.Get(schedule.processes(), wire);
      for (size_t i = 0; i < kSamples.size(); ++i) {
        if (kSlow && kSamples[i].tiles != 0 && (number + i + (wire == Wire::kTcp)) % 3 != 0) continue;
        const Sample& sample = kSamples[i];
        const bool complex = sample.dtype == DType::kC128;
        if (!schedule.messages()) {
          Check(job, schedule, sample, Protocol::kMemory, 40);
        } else if ((number + i + (wire == Wire::kTcp)) % 2 == 0) {
          Check(job, schedule, sample, Protocol::kLL, 40);
        } else {
          Check(job, schedule, sample, Protocol::kSimple, complex ? 16 : 64);
        }
      }
    }
  }
  CHECK(number > 200);
}

CASE("all collectives and algorithms in virtual time") {
  size_t number = 0;
  for (const Schedule& schedule : Schedules()) {
    if (schedule.half != Half::kBoth || schedule.processes() == 1) continue;
    Job job(schedule.processes(), Wire::kFake);
    for (const Sample& sample : kSamples) {
      const bool narrow = sample.dtype == DType::kC128;
      Check(job, schedule, sample, ++number % 2 == 0 ? Protocol::kLL : Protocol::kSimple, narrow ? 16 : 40);
    }
  }
  CHECK(number > 800);
}

// Results larger than the caches are written with non-temporal stores.
CASE("large operands") {
  Job job(1, Wire::kShared);
  for (const char* name : {"all_reduce direct 1x4 x1", "broadcast direct 1x4 x1", "all_gather direct 1x4 x1",
                           "all_to_all direct 1x4 x1"}) {
    Check(job, Find(name), {(2 << 20) + 5, 0, DType::kF32, ReduceOp::kSum, false}, Protocol::kMemory, 64 * 1024);
  }
}

}  // namespace
}  // namespace jaxring::test
