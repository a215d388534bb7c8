#include "plan/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

namespace jaxring {
namespace {

template <class T>
std::vector<T> Items(std::string_view bytes) {
  if (bytes.size() % sizeof(T) != 0)
    throw std::invalid_argument("the size of a schedule table is not a multiple of its record's");
  std::vector<T> items(bytes.size() / sizeof(T));
  if (!items.empty()) std::memcpy(static_cast<void*>(items.data()), bytes.data(), bytes.size());
  return items;
}

}  // namespace

RankTable ReadTable(int rank, std::string_view steps, std::string_view lane_begin, std::string_view peers, int nlanes) {
  RankTable table;
  table.rank = rank;
  table.steps = Items<Step>(steps);
  table.lane_begin = Items<uint32_t>(lane_begin);
  table.peers = Items<int32_t>(peers);
  if (nlanes < 1 || table.lane_begin.size() != static_cast<size_t>(nlanes) + 1 ||
      table.lane_begin.back() > table.steps.size() ||
      !std::is_sorted(table.lane_begin.begin(), table.lane_begin.end())) {
    throw std::invalid_argument("the lanes of a schedule table do not fit its steps");
  }
  for (const Step& step : table.steps) {
    if (size_t{step.recv_begin} + step.recv_count > table.peers.size() ||
        size_t{step.send_begin} + step.send_count > table.peers.size()) {
      throw std::invalid_argument("a step's peers reach past the end of the table's peer list");
    }
  }
  return table;
}

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

void Plan::Seal() {
  shape.bounds.clear();
  for (int p = 0; p <= shape.pieces; ++p) shape.bounds.push_back(PieceBegin(p));
  shape.tiles = Tiles();
  output_bytes = result_bytes();
  group.local_of_rank.assign(group.ranks.size(), -1);
  for (size_t i = 0; i < group.locals.size(); ++i) group.local_of_rank.at(group.locals[i].rank) = static_cast<int>(i);
  auto empty = [this](uint8_t buffer, int32_t chunk) {
    const Buffer where = static_cast<Buffer>(buffer);
    if (where == Buffer::kNone) return true;
    const uint64_t piece = static_cast<uint64_t>(chunk) % shape.pieces;
    // A scratch chunk's length is not known here.
    return where != Buffer::kScratch && shape.bounds[piece] == shape.bounds[piece + 1];
  };
  sends_first = shape.tiles == 1;
  for (RankTable& table : group.locals) {
    // A rank's own entry is a chunk of its own, or a message of a plan that only sends or only receives.
    auto any_message = [&table](uint32_t begin, uint32_t count) {
      const auto first = table.peers.begin() + begin;
      return std::any_of(first, first + count,
                         [&table](int32_t peer) { return !Peer::memory(peer) && Peer::rank(peer) != table.rank; });
    };
    for (int lane = 0; lane < shape.nlanes; ++lane) {
      bool received = false;
      for (uint32_t i = table.lane_begin[lane]; i < table.lane_begin[lane + 1]; ++i) {
        const Step& step = table.steps[i];
        received |= any_message(step.recv_begin, step.recv_count);
        if (received && any_message(step.send_begin, step.send_count)) sends_first = false;
      }
    }
    table.idle.assign(shape.nlanes, 1);
    for (int lane = 0; lane < shape.nlanes; ++lane) {
      for (uint32_t i = table.lane_begin[lane]; i < table.lane_begin[lane + 1]; ++i) {
        const Step& step = table.steps[i];
        if (!empty(step.src_buffer, step.src_chunk) || !empty(step.dst_buffer, step.dst_chunk)) table.idle[lane] = 0;
      }
    }
  }
}

}  // namespace jaxring
