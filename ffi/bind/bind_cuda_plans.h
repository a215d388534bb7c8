// Plans of the CUDA engine as Python makes them, and standalone runs of them, without XLA.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/launcher.h"

namespace jaxring::cuda {

// A plan that Python builds field by field for a planning request. Finish makes it at the first call for a
// communicator; later calls return the same one.
struct PlanBuilder {
  LaunchPlanSpec spec;
  std::vector<std::pair<RankTable, bool>> locals;
  std::map<int, std::pair<std::vector<Move>, std::vector<int>>> moves;  // by rank; and what arrives

  void SetData(int dtype, int op, uint64_t divisor, uint64_t block_elements);
  void SetEpilogue(const std::vector<std::string>& functions, int result, const std::vector<int>& further);
  void AddLocal(int rank, const nanobind::bytes& steps, const nanobind::bytes& lane_begin, const nanobind::bytes& peers,
                bool members);
  std::shared_ptr<LaunchPlan> Finish(std::shared_ptr<Communicator> communicator);

 private:
  std::shared_ptr<LaunchPlan> made_;
};

void BindPlans(nanobind::module_& m);

}  // namespace jaxring::cuda
