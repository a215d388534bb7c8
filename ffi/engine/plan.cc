#include "engine/plan.h"

#include <map>

namespace jaxring {

void RankTable::NumberFlows() {
  std::map<int, uint32_t> number;
  flow.clear();
  flow_rank.clear();
  for (int32_t peer : peers) {
    auto [it, fresh] = number.try_emplace(Peer::rank(peer), static_cast<uint32_t>(flow_rank.size()));
    if (fresh) flow_rank.push_back(Peer::rank(peer));
    flow.push_back(it->second);
  }
}

}  // namespace jaxring
