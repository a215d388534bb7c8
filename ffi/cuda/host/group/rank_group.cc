#include "cuda/host/group/rank_group.h"

#include <stdexcept>
#include <utility>

namespace jaxring::cuda {
namespace {

uint64_t Hash(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

}  // namespace

RankGroup::RankGroup(int process, CommunicatorSpec spec)
    : process_(process), spec_(std::move(spec)), hash_(Hash(spec_.name)) {
  for (int r = 0; r < size(); ++r) {
    if (!local(r)) peers_.insert(spec_.ranks[r].process);
    if (!local(r)) continue;
    for (int m : Members(r)) {
      if (!local(m)) processes_.insert(spec_.ranks[m].process);
    }
  }
}

void RankGroup::RequireLocal(int rank) const {
  if (rank >= 0 && rank < size() && local(rank)) return;
  throw std::runtime_error(spec_.name + ": rank " + std::to_string(rank) + " is not in this process");
}

std::vector<int> RankGroup::Members(int rank) const {
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (r != rank && spec_.ranks[r].domain == spec_.ranks[rank].domain) members.push_back(r);
  }
  return members;
}

std::vector<int> RankGroup::OtherDevices(int rank) const {
  std::set<int> others;
  for (int member : Members(rank)) {
    if (local(member) && spec_.ranks[member].device != spec_.ranks[rank].device) {
      others.insert(spec_.ranks[member].device);
    }
  }
  return {others.begin(), others.end()};
}

}  // namespace jaxring::cuda
