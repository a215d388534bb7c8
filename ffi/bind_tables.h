// A rank's part of a schedule as Python hands it over: three arrays of bytes. For both native modules.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "ffi/engine/plan.h"

namespace jaxring {

template <class T>
std::vector<T> FromBytes(const nanobind::bytes& bytes) {
  if (bytes.size() % sizeof(T) != 0) throw std::invalid_argument("a schedule table of the wrong size");
  std::vector<T> items(bytes.size() / sizeof(T));
  if (!items.empty()) std::memcpy(items.data(), bytes.c_str(), bytes.size());
  return items;
}

// Throws std::invalid_argument where the arrays do not fit each other or the number of lanes.
inline RankTable TableFromBytes(int rank, const nanobind::bytes& steps, const nanobind::bytes& lane_begin,
                                const nanobind::bytes& peers, int nlanes) {
  RankTable table;
  table.rank = rank;
  table.steps = FromBytes<Step>(steps);
  table.lane_begin = FromBytes<uint32_t>(lane_begin);
  table.peers = FromBytes<int32_t>(peers);
  if (table.lane_begin.size() != static_cast<size_t>(nlanes) + 1 || table.lane_begin.back() > table.steps.size()) {
    throw std::invalid_argument("a schedule table whose lanes do not fit its steps");
  }
  for (const Step& step : table.steps) {
    if (size_t{step.recv_begin} + step.recv_count > table.peers.size() ||
        size_t{step.send_begin} + step.send_count > table.peers.size()) {
      throw std::invalid_argument("a step that names peers past the table's end");
    }
  }
  return table;
}

}  // namespace jaxring
