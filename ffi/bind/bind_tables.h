// Makes a rank's part of a schedule, and epilogues, from what Python says. Both native modules use it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace jaxring {

RankTable TableFromBytes(int rank, const nanobind::bytes& steps, const nanobind::bytes& lane_begin,
                         const nanobind::bytes& peers, int nlanes);

// MakeEpilogue by the numbers of dtypes. Throws std::invalid_argument for those that do not exist, too.
std::shared_ptr<const PlanEpilogue> EpilogueFromNumbers(const std::vector<std::string>& functions, DType data,
                                                        int result, const std::vector<int>& further);

}  // namespace jaxring
