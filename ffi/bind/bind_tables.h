// A rank's part of a schedule as Python hands it over: three arrays of bytes. For both native modules.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "plan/plan.h"

namespace jaxring {

inline RankTable TableFromBytes(int rank, const nanobind::bytes& steps, const nanobind::bytes& lane_begin,
                                const nanobind::bytes& peers, int nlanes) {
  auto view = [](const nanobind::bytes& bytes) { return std::string_view(bytes.c_str(), bytes.size()); };
  return ReadTable(rank, view(steps), view(lane_begin), view(peers), nlanes);
}

}  // namespace jaxring
