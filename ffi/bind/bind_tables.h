// A rank's part of a schedule as Python hands it over: three arrays of bytes. For both native modules.
#pragma once

#include <nanobind/nanobind.h>

#include "plan/plan.h"

namespace jaxring {

RankTable TableFromBytes(int rank, const nanobind::bytes& steps, const nanobind::bytes& lane_begin,
                         const nanobind::bytes& peers, int nlanes);

}  // namespace jaxring
