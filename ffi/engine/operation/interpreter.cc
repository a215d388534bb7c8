#include "engine/operation/interpreter.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/operation/combine.h"

namespace jaxring {

bool Interpreter::Enlarge(Operation& op, const Lane& lane, std::vector<char>* memory, size_t bytes, const char* what) {
  try {
    memory->resize(bytes);
    return true;
  } catch (const std::bad_alloc&) {
    op.Fail(Status::Error(Code::kResourceExhausted,
                          op.What() + ": " + op.plan().group.ranks[op.plan().group.locals[lane.local].rank].name +
                              " has no memory for " + std::to_string(bytes) + " bytes " + what + ". " + kMemoryHint));
    return false;
  }
}

Destination Interpreter::Result(const Participant& participant, Operation::Span tile, bool stream) {
  const Pages pages = participant.pages;
  return {tile.data, false, stream && pages != Pages::kFresh, pages != Pages::kPresent};
}

struct Interpreter::Workspace {
  std::vector<Claim> claims;
  std::vector<Source> sources;
  std::vector<Destination> destinations;
};

Progress Interpreter::Advance(Operation& op, Lane& lane, int budget) {
  const RankTable& table = op.plan().group.locals[lane.local];
  bool moved = false;
  while (true) {
    if (op.failed() || lane.tile >= lane.tiles) {
      if (lane.shared_block.index >= 0) LeaveSharedBlock(lane);
      lane.done = true;
      return Progress::kDone;
    }
    if (budget-- == 0) return Progress::kMoved;
    if (!TryStep(op, lane, table.steps[lane.step])) {
      if (op.failed()) continue;
      return moved ? Progress::kMoved : Progress::kBlocked;
    }
    moved = true;
    lane.waits_for = -1;
    if (++lane.step == lane.step_end) {
      lane.step = table.lane_begin[lane.number];
      ++lane.tile;
    }
  }
}

bool Interpreter::TryStep(Operation& op, Lane& lane, const Step& step) {
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  Buffer src = static_cast<Buffer>(step.src_buffer), dst = static_cast<Buffer>(step.dst_buffer);
  auto in_memory = [](Buffer b) { return b == Buffer::kInput || b == Buffer::kOutput; };
  if (step.kind == static_cast<uint8_t>(StepKind::kGather)) return Gather(op, lane, step);
  if (step.kind == static_cast<uint8_t>(StepKind::kSpread)) return Spread(op, lane, step);
  // All chunks of other steps have the same length. A scratch chunk has the length of the step that wrote it.
  uint64_t elements;
  if (in_memory(dst)) {
    elements = op.Tile(lane.local, dst, step.dst_chunk, lane.tile).elements;
  } else if (in_memory(src)) {
    elements = op.Tile(lane.local, src, step.src_chunk, lane.tile).elements;
  } else {
    elements = lane.scratch_elements[step.src_chunk];
  }
  if (dst == Buffer::kScratch) {
    lane.scratch_elements.resize(plan.shape.scratch_chunks);
    lane.scratch_elements[step.dst_chunk] = elements;
  }
  if (elements == 0) return true;
  if (step.flags & StepFlag::kZero) {
    const Operation::Span tile = op.Tile(lane.local, dst, step.dst_chunk, lane.tile);
    const Destination zeros = Result(op.participant(lane.local), tile, false);
    if (zeros.fresh) PopulatePages(zeros.data, elements * plan.result_bytes());
    std::memset(zeros.data, 0, elements * plan.result_bytes());
    return true;
  }
  uint32_t message_sends = 0;
  for (uint32_t i = 0; i < step.send_count; ++i) {
    if (!Peer::memory(table.peers[step.send_begin + i])) ++message_sends;
  }
  if (!lane.made) {
    if (!Make(op, lane, step, elements, message_sends)) return false;
    lane.made = true;
    lane.sends_done = message_sends <= 1 ? step.send_count : 0;
  }
  if (!SendRest(op, lane, step, elements)) return false;
  lane.made = false;
  return true;
}

bool Interpreter::Make(Operation& op, Lane& lane, const Step& step, uint64_t elements, uint32_t message_sends) {
  thread_local Workspace work;
  const Plan& plan = op.plan();
  const RankTable& table = plan.group.locals[lane.local];
  const Buffer src = static_cast<Buffer>(step.src_buffer), dst = static_cast<Buffer>(step.dst_buffer);
  const bool recv_partial = step.flags & StepFlag::kRecvPartial, send_partial = step.flags & StepFlag::kSendPartial;
  const uint64_t scratch_stride = plan.shape.tile_elements * plan.data.partial_bytes;
  work.claims.clear();
  work.sources.clear();
  work.destinations.clear();
  if (lane.scratch.empty() && (src == Buffer::kScratch || dst == Buffer::kScratch) &&
      !Enlarge(op, lane, &lane.scratch, plan.shape.scratch_chunks * scratch_stride, "of scratch")) {
    return false;
  }
  auto give_back = [&] {
    for (Claim& claim : work.claims) Return(claim);
    work.claims.clear();
    return false;
  };
  auto local_source = [&](uint32_t local) -> Source {
    if (src == Buffer::kScratch) return {lane.scratch.data() + step.src_chunk * scratch_stride, true};
    return {op.Tile(local, src, step.src_chunk, lane.tile).data, false};
  };

  if (step.recv_count == 0) work.sources.push_back(local_source(lane.local));
  for (uint32_t i = 0; i < step.recv_count; ++i) {
    const uint32_t entry = step.recv_begin + i;
    const int rank = Peer::rank(table.peers[entry]);
    if (rank == table.rank && src != Buffer::kNone) {
      work.sources.push_back(local_source(lane.local));
    } else if (Peer::memory(table.peers[entry])) {
      work.sources.push_back(local_source(static_cast<uint32_t>(plan.group.local_of_rank[rank])));
    } else {
      Claim claim;
      if (!Receive(op, lane, entry, &claim)) return give_back();
      const size_t each = recv_partial ? plan.data.partial_bytes : plan.source_bytes(step);
      Expect(op, table, rank, claim, plan.message_bytes(elements, each));
      work.claims.push_back(std::move(claim));
      if (op.failed()) return give_back();
      work.sources.push_back({work.claims.back().data, recv_partial || plan.sends_codes()});
    }
  }

  RingSender* ring = nullptr;
  StoreChoice* stores = nullptr;
  uint64_t position = 0;
  uint32_t send_entry = 0;
  size_t shared = 0;  // the destination that another thread or process reads, if `stores` is set
  const bool in_shared_block = message_sends > 1 && TakeSharedBlock(op, lane, step, message_sends);
  // Ordinary stores if several messages are copied from the value, since it is read again at once.
  const bool stream = (message_sends <= 1 || in_shared_block) && plan.out_bytes() >= kStreamBytes;
  auto result_of = [&](uint32_t local) {
    return Result(op.participant(local), op.Tile(local, Buffer::kOutput, step.dst_chunk, lane.tile), stream);
  };
  if (dst == Buffer::kScratch) {
    work.destinations.push_back({lane.scratch.data() + step.dst_chunk * scratch_stride, true});
  } else if (dst != Buffer::kNone) {
    work.destinations.push_back(result_of(lane.local));
  }
  // The value of several messages is computed in a shared block, in the local destination, or in the lane's staging
  // memory if the destination has another element type. They are sent from there.
  if (in_shared_block) {
    stores = lane.shared_block.stores;
    work.destinations.push_back({lane.shared_block.pool->data(lane.shared_block.index), send_partial});
    shared = work.destinations.size() - 1;
    lane.value = lane.shared_block.pool->data(lane.shared_block.index);
  } else if (message_sends > 1) {
    if (work.destinations.empty() || work.destinations[0].partial != send_partial) {
      const size_t widest = std::max(plan.data.partial_bytes, plan.result_bytes());
      if (!Enlarge(op, lane, &lane.staging, plan.shape.tile_elements * widest, "to send from")) return give_back();
      work.destinations.push_back({lane.staging.data(), send_partial});
    }
    lane.value = static_cast<const char*>(work.destinations.back().data);
  }
  for (uint32_t i = 0; i < step.send_count; ++i) {
    const uint32_t entry = step.send_begin + i;
    const int rank = Peer::rank(table.peers[entry]);
    if (Peer::memory(table.peers[entry])) {
      if (rank == table.rank) continue;
      work.destinations.push_back(result_of(static_cast<uint32_t>(plan.group.local_of_rank[rank])));
    } else if (message_sends == 1) {
      if (!Reserve(op, lane, entry, &ring, &position)) return give_back();
      send_entry = entry;
      stores = &ring->stores();
      shared = work.destinations.size();
      work.destinations.push_back({ring->payload(position), send_partial});
    }
  }

  // A fresh huge page that this lane fills tile after tile is still in the caches, where it was cleared, so ordinary
  // stores are faster. If more results or blocks take turns it has left the caches. Speed of ordinary stores at 64 MiB
  // on 2 cores: 1.2 times with one result, 1.1 with two, 0.85 with four.
  if (plan.shape.out_blocks == 1 && work.destinations.size() <= 2 && !plan.codes) {
    for (Destination& destination : work.destinations) destination.stream = destination.stream && !destination.fresh;
  }
  const size_t sent_bytes =
      plan.message_bytes(elements, send_partial ? plan.data.partial_bytes : plan.destination_bytes(step));
  ChosenWrite write(plan.codes ? nullptr : stores, sent_bytes);
  if (write.chosen()) work.destinations[shared].stream = write.streams();
  // Which element of the operand or of the result is the first one of a chunk of either.
  const Participant& participant = op.participant(lane.local);
  const auto first_of = [&](Buffer buffer, int32_t chunk) {
    const void* begin = buffer == Buffer::kInput ? participant.in : participant.out;
    const size_t each = buffer == Buffer::kInput ? plan.data.element_bytes : plan.result_bytes();
    return static_cast<uint64_t>(op.Tile(lane.local, buffer, chunk, lane.tile).data - static_cast<const char*>(begin)) /
           each;
  };
  if (step.flags & StepFlag::kEpilogue) {
    // No matter where the result goes elsewhere: then there are no operands.
    const uint64_t first = dst == Buffer::kOutput ? first_of(dst, step.dst_chunk) : 0;
    CombineWithEpilogue(plan, work.sources, work.destinations, {*participant.epilogue, first}, elements);
  } else if (plan.codes) {
    const uint64_t first = dst == Buffer::kOutput ? first_of(dst, step.dst_chunk) : first_of(src, step.src_chunk);
    CombineCodes(plan, work.sources, work.destinations, {*participant.codes, table.rank, first}, elements);
  } else {
    Combine(plan, work.sources, work.destinations, elements, plan.destination_bytes(step),
            step.flags & StepFlag::kFinal);
  }
  write.End((work.sources.size() + work.destinations.size()) * sent_bytes);
  for (Claim& claim : work.claims) {
    ++lane.flows[claim.flow].received;
    if (claim.ring != nullptr) claim.ring->Release(claim.position);
  }
  if (ring != nullptr) {
    Publish(op, lane, send_entry, *ring, position, sent_bytes);
  }
  work.claims.clear();
  return true;
}

}  // namespace jaxring
