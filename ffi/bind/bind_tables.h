// Makes a rank's part of a schedule from Python's three arrays of bytes. Both native modules use it.
#pragma once

#include <nanobind/nanobind.h>

#include "plan/plan.h"

namespace jaxring {

RankTable TableFromBytes(int rank, const nanobind::bytes& steps, const nanobind::bytes& lane_begin,
                         const nanobind::bytes& peers, int nlanes);

}  // namespace jaxring
