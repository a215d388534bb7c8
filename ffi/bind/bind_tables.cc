#include "bind/bind_tables.h"

#include <string_view>

namespace jaxring {

RankTable TableFromBytes(int rank, const nanobind::bytes& steps, const nanobind::bytes& lane_begin,
                         const nanobind::bytes& peers, int nlanes) {
  auto view = [](const nanobind::bytes& bytes) { return std::string_view(bytes.c_str(), bytes.size()); };
  return ReadTable(rank, view(steps), view(lane_begin), view(peers), nlanes);
}

}  // namespace jaxring
