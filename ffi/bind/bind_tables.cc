#include "bind/bind_tables.h"

#include <string_view>

namespace jaxring {

RankTable TableFromBytes(int rank, const nanobind::bytes& steps, const nanobind::bytes& lane_begin,
                         const nanobind::bytes& peers, int nlanes) {
  auto view = [](const nanobind::bytes& bytes) { return std::string_view(bytes.c_str(), bytes.size()); };
  return ReadTable(rank, view(steps), view(lane_begin), view(peers), nlanes);
}

std::shared_ptr<const PlanEpilogue> EpilogueFromNumbers(const std::vector<std::string>& functions, DType data,
                                                        int result, const std::vector<int>& further) {
  auto known = [](int dtype) {
    if (dtype < 0 || dtype >= kDTypeCount) throw std::invalid_argument("no such dtype");
    return static_cast<DType>(dtype);
  };
  std::vector<DType> dtypes;
  for (int dtype : further) dtypes.push_back(known(dtype));
  return MakeEpilogue(functions, data, known(result), dtypes);
}

}  // namespace jaxring
