#include "engine/operation/operation.h"

#include <algorithm>

#include "network/peers/peer.h"

namespace jaxring {

const char* LostHint(Ending ending) {
  if (ending == Ending::kUnreachable) {
    return "The link to that host is cut, or the host is down: check its cables, interfaces and routes. Once it is "
           "reached again jaxring.rebuild() goes on with all; jaxring.shrink() goes on without its processes. "
           "JAXRING_LINK_TIMEOUT says how long to wait before that.";
  }
  if (ending == Ending::kDamaged) {
    return "Both processes may be well: memory, a device, a driver or an attacker on the way has changed the data. "
           "Check both hosts' kernel logs; jaxring.rebuild() goes on with new connections.";
  }
  if (ending == Ending::kReportedError || ending == Ending::kReportedErrorIdle) {
    return "Its log says more. Restart the job, or go on without that process: jaxring.shrink().";
  }
  if (ending == Ending::kGoodbye) {
    return "Have all processes run the same steps, as often; its log may say why it ended. jaxring.shrink() goes on "
           "without it.";
  }
  return "A process that ends without a word was killed, ran out of memory or crashed: its log or the kernel's says "
         "why. Restart the job, or go on without that process: jaxring.shrink().";
}

namespace {

uint64_t Mix(uint64_t x) {  // splitmix64's finaliser (Steele, Lea, Flood 2014)
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// A reused lane keeps its staging and scratch memory up to this size.
constexpr size_t kKeptBytes = 16 * 1024;

// The tiles of the longest block of any local rank: a rank that gathers a message reads the blocks of others, too.
uint64_t RaggedTiles(const Plan& plan, const std::vector<Participant>& participants) {
  uint64_t longest = 0;
  for (const Participant& participant : participants) {
    if (!participant.extents) continue;
    for (uint64_t n : participant.extents->in_length) longest = std::max(longest, n);
    for (uint64_t n : participant.extents->out_length) longest = std::max(longest, n);
  }
  return (longest + plan.shape.tile_elements - 1) / plan.shape.tile_elements;
}

}  // namespace

uint64_t OperationKey(uint64_t plan_key, uint64_t sequence) { return Mix(plan_key ^ Mix(sequence)); }

Operation::Operation(std::shared_ptr<const Plan> plan, uint64_t key, std::vector<Participant> participants,
                     Clock::time_point deadline)
    : plan_(std::move(plan)), key_(key), deadline_(deadline), participants_(std::move(participants)) {
  const uint64_t ragged_tiles = RaggedTiles(*plan_, participants_);
  for (uint32_t l = 0; l < plan_->group.locals.size(); ++l) {
    const RankTable& table = plan_->group.locals[l];
    const Extents* extents = participants_[l].extents.get();
    for (int i = 0; i < plan_->shape.nlanes; ++i) {
      if (extents == nullptr ? table.idle[i] != 0 : table.lane_begin[i] == table.lane_begin[i + 1]) continue;
      auto lane = std::make_unique<Lane>();
      lane->local = l;
      lane->number = static_cast<uint16_t>(i);
      lane->step = table.lane_begin[i];
      lane->step_end = table.lane_begin[i + 1];
      lane->tiles = extents != nullptr ? ragged_tiles : plan_->shape.tiles;
      lane->flows.resize(table.flow_rank.size());
      lanes_.push_back(std::move(lane));
    }
  }
  lanes_left_ = static_cast<int>(lanes_.size());
}

bool Operation::Reusable() const {
  return !handed_over && finished() && !failed() && !owned_input && kept.empty() && non_finite_text.empty() &&
         std::none_of(participants_.begin(), participants_.end(),
                      [](const Participant& p) { return p.extents != nullptr; });
}

void Operation::Reuse(uint64_t key, Clock::time_point deadline) {
  key_ = key;
  deadline_ = deadline;
  for (auto& lane : lanes_) {
    lane->step = plan_->group.locals[lane->local].lane_begin[lane->number];
    lane->tile = 0;
    lane->made = lane->done = lane->waits_to_send = false;
    lane->sends_done = 0;
    lane->value = nullptr;
    lane->waits_for = -1;
    for (Flow& flow : lane->flows) flow.sent = flow.received = 0;
    for (auto* memory : {&lane->staging, &lane->scratch}) {
      if (memory->size() > kKeptBytes) std::vector<char>().swap(*memory);
    }
  }
  lanes_left_ = static_cast<int>(lanes_.size());
}

bool Operation::InSharedMemory() const {
  bool any = false;
  for (const auto& lane : lanes_) {
    for (const Flow& flow : lane->flows) {
      if (flow.send && !flow.send->transport.shares_memory) return false;
      if (flow.recv && !flow.recv->transport.shares_memory) return false;
      any |= flow.send || flow.recv;
    }
  }
  return any;
}

Status LostPeer(const Operation& op, int self, int peer, const PeerEnd& end) {
  const Plan& plan = op.plan();
  const bool left = end.ending == Ending::kGoodbye;
  return Status::Error(LostCode(end.ending), op.What() + ": " + plan.group.ranks[self].name +
                                                 (left ? " waits for " : " lost ") + plan.group.ranks[peer].name +
                                                 ": " + end.reason +
                                                 (left ? ", so it ran fewer steps than this process" : "") + ". " +
                                                 end.last_seen + LostHint(end.ending));
}

void Operation::Fail(Status status) {
  MutexLock lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  status_ = std::move(status);
  failed_.store(true, std::memory_order_release);
}

Status Operation::status() const {
  MutexLock lock(mutex_);
  return status_;
}

std::string Operation::DescribeWaits(std::map<int, int>* rank_of_process) {
  std::string text;
  if (plan_->held_back()) {
    const std::set<int> missing = plan_->latch->Missing();
    for (size_t rank = 0; rank < plan_->group.ranks.size(); ++rank) {
      const RankPlace& place = plan_->group.ranks[rank];
      if (missing.count(place.process) == 0 ||
          !rank_of_process->try_emplace(place.process, static_cast<int>(rank)).second) {
        continue;
      }
      text += (text.empty() ? "waits for " : " and ") + place.name;
    }
    return text + " to begin this program";
  }
  for (const Wait& wait : Waits()) {
    rank_of_process->try_emplace(plan_->group.ranks[wait.peer].process, wait.peer);
    if (text.size() > 600) {
      if (!text.ends_with("...")) text += "; ...";
      continue;
    }
    if (!text.empty()) text += "; ";
    text += plan_->group.ranks[wait.self].name +
            (wait.to_send ? " waits for room to send to " : " waits for a message from ") +
            plan_->group.ranks[wait.peer].name;
  }
  return text;
}

uint64_t Operation::Progress() {
  uint64_t progress = plan_->held_back() ? plan_->latch->Missing().size() : 0;
  for (auto& lane : lanes_) {
    if (lane->busy.exchange(true, std::memory_order_acquire)) {
      return Mix(static_cast<uint64_t>(Clock::now().time_since_epoch().count()));
    }
    progress = Mix(progress ^ Mix(lane->tile) ^ (uint64_t{lane->step} << 32 | lane->sends_done << 1 | lane->made));
    lane->busy.store(false, std::memory_order_release);
  }
  return progress;
}

std::vector<Operation::Wait> Operation::Waits() {
  std::vector<Wait> waits;
  for (auto& lane : lanes_) {
    // A busy lane is making progress, and reading it would race with its thread.
    if (lane->busy.exchange(true, std::memory_order_acquire)) continue;
    if (!lane->done && lane->waits_for >= 0) {
      waits.push_back({plan_->group.locals[lane->local].rank, lane->waits_for, lane->waits_to_send});
    }
    lane->busy.store(false, std::memory_order_release);
  }
  return waits;
}

Operation::Span Operation::Tile(uint32_t local, Buffer buffer, int32_t chunk, uint64_t tile) const {
  const Plan& plan = *plan_;
  const Participant& p = participants_[local];
  char* base = buffer == Buffer::kInput ? static_cast<char*>(const_cast<void*>(p.in)) : static_cast<char*>(p.out);
  uint64_t begin, length;
  if (p.extents) {
    const auto& offset = buffer == Buffer::kInput ? p.extents->in_offset : p.extents->out_offset;
    const auto& lengths = buffer == Buffer::kInput ? p.extents->in_length : p.extents->out_length;
    begin = offset[chunk];
    length = lengths[chunk];
  } else {
    const int32_t block = chunk / plan.shape.pieces, piece = chunk % plan.shape.pieces;
    begin = plan.shape.bounds[piece];
    length = plan.shape.bounds[piece + 1] - plan.shape.bounds[piece];
    if (p.blocks) {
      base = p.blocks[buffer == Buffer::kInput ? block : plan.shape.in_blocks + block];
    } else {
      begin += static_cast<uint64_t>(block) * plan.shape.block_elements;
    }
  }
  uint64_t skip = tile * plan.shape.tile_elements;
  if (skip >= length) return {base, 0};
  const size_t element = buffer == Buffer::kInput ? plan.data.element_bytes : plan.output_bytes;
  return {base + (begin + skip) * element, std::min(plan.shape.tile_elements, length - skip)};
}

}  // namespace jaxring
