// One collective of float32 on the shim, with everything that its launches need.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/cuda_launch.h"
#include "tests/support/job.h"

namespace jaxring::test {

struct Scene {
  Scene(const std::string& name, cuda::Protocol protocol, uint64_t block)
      : schedule(Find(name)), plan((settings.dtype = DType::kF32, settings.block = block, schedule), settings, 2) {
    cluster = std::make_unique<Cluster>(ClusterShape{schedule.ranks(), static_cast<uint32_t>(schedule.nlanes),
                                                     schedule.placement, protocol, 4, plan.slot_bytes(protocol)});
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      inputs.push_back(Input(settings, schedule.in_blocks, rank, 1));
      outputs.emplace_back(block * 4 * schedule.out_blocks);
    }
  }
  cuda::Args Args(int rank) { return plan.Args(*cluster, rank, inputs[rank].data(), outputs[rank].data()); }

  Settings settings;
  const Schedule& schedule;
  CudaPlan plan;
  std::unique_ptr<Cluster> cluster;
  std::vector<Buffer> inputs, outputs;
};

}  // namespace jaxring::test
