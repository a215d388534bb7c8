// Results do not depend on timing: each algorithm gives the same bits over all transports, protocols, tile sizes and
// delays. The direct algorithm, which `deterministic` selects, folds in rank order for every size and rank placement.
#include <map>
#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

struct Way {
  Wire wire;
  Protocol protocol;
  uint64_t tile;
  uint64_t seed;  // of the delays
};

const std::vector<Way> kWays = {{Wire::kShared, Protocol::kLL, 48, 0},
                                {Wire::kShared, Protocol::kSimple, 7, 1},
                                {Wire::kShared, Protocol::kSimple, 64, 2},
                                {Wire::kTcp, Protocol::kLL, 31, 3},
                                {Wire::kTcp, Protocol::kSimple, 48, 4}};

std::vector<Buffer> Play(Job* job, const Way& way, const Schedule& schedule, DType dtype, uint64_t block,
                         std::vector<Buffer>* inputs) {
  Settings settings;
  settings.dtype = dtype;
  settings.block = block;
  settings.protocol = schedule.messages() ? way.protocol : Protocol::kMemory;
  settings.tile = way.tile;
  Call call(job, schedule, settings);
  *inputs = Inputs(call, 9);
  auto outputs = Outputs(call);
  Ends ends(call.Describe());
  // Different ranks are late with each wire and protocol.
  for (int i = 0; i < schedule.ranks(); ++i) {
    const int rank = static_cast<int>((i * 3 + way.seed) % schedule.ranks());
    call.Arrive(rank, 1, (*inputs)[rank].data(), outputs[rank].data(), ends.Expect());
  }
  ends.WaitOk();
  return outputs;
}

std::vector<float> InRankOrder(const std::vector<Buffer>& inputs, uint64_t block) {
  std::vector<float> sum(reinterpret_cast<const float*>(inputs[0].data()),
                         reinterpret_cast<const float*>(inputs[0].data()) + block);
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    for (uint64_t i = 0; i < block; ++i) sum[i] += reinterpret_cast<const float*>(inputs[rank].data())[i];
  }
  return sum;
}

CASE("bits do not depend on transport and protocol") {
  const std::vector<uint64_t> blocks = {1, 3, 130, 1000};
  std::map<std::string, std::vector<Buffer>> first;
  std::map<std::pair<int, uint64_t>, std::vector<float>> in_rank_order;  // by ranks and block, of all placements
  int compared = 0, different = 0;
  for (const Way& way : kWays) {
    EngineOptions options{2, 256, 20, 20};
    options.faults.delay = way.seed == 0 ? 0 : 0.2;
    options.faults.delay_us = 200;
    options.faults.seed = way.seed;
    Job job(4, way.wire, options, 2);
    for (const Schedule& schedule : Schedules()) {
      if (schedule.collective != "all_reduce" || schedule.processes() > 4 || schedule.ranks() != 4) continue;
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        for (uint64_t block : blocks) {
          std::vector<Buffer> inputs;
          auto outputs = Play(&job, way, schedule, dtype, block, &inputs);
          const std::string name =
              schedule.name + std::to_string(static_cast<int>(dtype)) + "/" + std::to_string(block);
          for (const Buffer& output : outputs) CHECK(output == outputs[0]);
          if (dtype == DType::kF32) {
            auto [at, fresh] = in_rank_order.try_emplace({schedule.ranks(), block});
            if (fresh) at->second = InRankOrder(inputs, block);
            const bool equal = std::memcmp(at->second.data(), outputs[0].data(), block * sizeof(float)) == 0;
            if (schedule.name.find("all_reduce direct ") == 0) CHECK(equal);
            if (!equal) ++different;
          }
          auto [at, fresh] = first.try_emplace(name);
          if (fresh) {
            at->second = std::move(outputs);
            continue;
          }
          CHECK(at->second[0] == outputs[0]);
          ++compared;
        }
      }
    }
  }
  // Other algorithms fold in other orders, and these inputs show it.
  CHECK(different > 10);
  CHECK(Faults::injected() > 100);
  std::cout << compared << " results have the bits that they had on another way" << std::endl;
}

}  // namespace
}  // namespace jaxring::test
