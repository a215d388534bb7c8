// Runs a lane of a step table by a block of threads: the device's counterpart of
// ffi/engine/operation/interpreter.cc.
//
// A step runs slice by slice, with a message each. All threads prepare (each waits for at most one peer), process the
// data, and publish, with barriers in between. The thread that prepares an operand also publishes it.
#pragma once

#include "cuda/device/epoch_barrier.h"
#include "cuda/kernels/plain_slices.h"

namespace jaxring::cuda {

// `Slices`: what it does with the data of a slice (plain_slices.h, epilogue_slices.h).
template <class Slices>
class Player {
 public:
  JAXRING_DEVICE Player(const Args& args, Shared& shared, const Slices& slices)
      : args_(args), lane_(args, shared), slices_(slices) {}

  // Returns the same for all threads: whether it is done.
  JAXRING_DEVICE bool Play() {
    const uint32_t begin = args_.table.lane_begin[lane_.number], end = args_.table.lane_begin[lane_.number + 1];
    if constexpr (Slices::kBulk) StartBulk(args_);
    bool good = EnterBarrier(lane_);
    for (uint64_t tile = 0; good && begin != end && HasTile(tile); ++tile) {
      lane_.tile = static_cast<uint32_t>(tile);
      Step next = args_.table.steps[begin];
      for (uint32_t s = begin; good && s < end; ++s) {
        const Step step = next;
        if (s + 1 < end) next = args_.table.steps[s + 1];  // prefetched while this step runs
        lane_.step = s - begin;
        good = PlayStep(step, tile);
      }
    }
    return LeaveBarrier(lane_, !good) && !SizesAreBad();
  }

 private:
  using Protocol = typename Slices::Protocol;

  struct Span {
    uint64_t offset;  // in bytes, from the buffer's begin
    uint64_t elements;
  };

  // Then all chunks are empty, so that no peer waits for this rank.
  JAXRING_DEVICE bool SizesAreBad() const {
    return args_.extents.in_offset != nullptr && (*args_.extents.longest & Extents::kBadSizes) != 0;
  }
  // Read anew for each tile: a count that is kept takes registers from the loops over data.
  JAXRING_DEVICE bool HasTile(uint64_t tile) const {
    if (args_.extents.in_offset == nullptr) return tile < args_.shape.tiles;
    return !SizesAreBad() && tile * args_.shape.tile_elements < *args_.extents.longest;
  }

  JAXRING_DEVICE Span SpanOf(Buffer buffer, int32_t chunk, uint64_t tile, uint32_t element) const {
    uint64_t begin, length;
    if (args_.extents.in_offset != nullptr) {
      const bool in = buffer == Buffer::kInput;
      begin = (in ? args_.extents.in_offset : args_.extents.out_offset)[chunk];
      length = (in ? args_.extents.in_length : args_.extents.out_length)[chunk];
    } else {
      const uint32_t block = static_cast<uint32_t>(chunk) / args_.shape.pieces;
      const uint32_t piece = static_cast<uint32_t>(chunk) % args_.shape.pieces;
      begin = block * args_.shape.block_elements + args_.table.piece_begin[piece];
      length = args_.table.piece_begin[piece + 1] - args_.table.piece_begin[piece];
    }
    const uint64_t skip = tile * args_.shape.tile_elements;
    if (skip >= length) return {0, 0};
    const uint64_t rest = length - skip;
    return {(begin + skip) * element, rest < args_.shape.tile_elements ? rest : args_.shape.tile_elements};
  }
  JAXRING_DEVICE char* ScratchAt(int32_t chunk) const {
    const uint64_t bytes = ScratchBytes(args_.shape.tile_elements, slices_.Element(), slices_.Widening());
    return args_.buffers.scratch + (static_cast<uint64_t>(lane_.number) * args_.shape.scratch_chunks + chunk) * bytes;
  }

  JAXRING_DEVICE bool PlayStep(const Step& step, uint64_t tile) {
    const Buffer src = static_cast<Buffer>(step.src_buffer), dst = static_cast<Buffer>(step.dst_buffer);
    const bool src_in_memory = src == Buffer::kInput || src == Buffer::kOutput;
    const Span from = src_in_memory ? SpanOf(src, step.src_chunk, tile, slices_.SourceElement(step)) : Span{0, 0};
    const Span to =
        dst == Buffer::kOutput ? SpanOf(dst, step.dst_chunk, tile, slices_.TargetElement(step)) : Span{0, 0};
    // Every chunk of a step has one length; a scratch chunk's is that of the step that wrote it.
    uint64_t elements = dst == Buffer::kOutput ? to.elements : from.elements;
    if (dst != Buffer::kOutput && !src_in_memory) elements = lane_.shared.scratch_elements[step.src_chunk];
    if (dst == Buffer::kScratch) {
      SyncBlock();
      if (ThreadIndex() == 0) lane_.shared.scratch_elements[step.dst_chunk] = elements;
      SyncBlock();
    }
    for (uint64_t at = 0; at < elements; at += args_.shape.slice_elements) {
      const uint64_t rest = elements - at;
      if (!PlaySlice(step, from.offset, to.offset, at,
                     rest < args_.shape.slice_elements ? rest : args_.shape.slice_elements)) {
        return false;
      }
    }
    return true;
  }

  // Threads prepare sources from the first thread on and targets from the last thread down, so that neither their waits
  // nor their fences add up.
  JAXRING_DEVICE static uint32_t FromLast() { return Threads() - 1 - ThreadIndex(); }

  JAXRING_DEVICE bool PlaySlice(const Step& step, uint64_t from, uint64_t to, uint64_t at, uint64_t elements) {
    const bool zero = step.flags & StepFlag::kZero, has_dst = step.dst_buffer != static_cast<uint8_t>(Buffer::kNone);
    const uint32_t sources = zero ? 0 : step.recv_count == 0 ? 1 : step.recv_count;
    const uint32_t targets = step.send_count + has_dst;
    if (sources > kMaxStepPeers || targets > kMaxStepPeers + 1) {
      if (ThreadIndex() == 0) Report(lane_, Fault::kBadTable, Wait::kNothing, -1, 0);
      return false;
    }
    const uint32_t source_element = slices_.SourceElement(step), target_element = slices_.TargetElement(step);
    const uint64_t from_skip = at * source_element, to_skip = at * target_element;
    bool lost = false;
    for (uint32_t i = ThreadIndex(); i < sources; i += Threads()) lost |= !PrepareSource(step, from + from_skip, at, i);
    for (uint32_t i = FromLast(); i < targets; i += Threads()) {
      lost |= !PrepareTarget(step, to + to_skip, at, i, has_dst);
    }
    if (SyncBlockOr(lost)) return false;

    lost = !slices_.Pass(lane_, step, sources, targets, elements, to + to_skip);
    if (SyncBlockOr(lost)) return false;

    for (uint32_t i = FromLast(); i < targets; i += Threads()) {
      PublishTarget(lane_.shared.targets[i], elements, target_element);
    }
    for (uint32_t i = ThreadIndex(); i < sources; i += Threads()) PublishSource(lane_.shared.sources[i]);
    return true;
  }

  JAXRING_DEVICE bool PrepareSource(const Step& step, uint64_t offset, uint64_t at, uint32_t i) {
    const Buffer src = static_cast<Buffer>(step.src_buffer);
    Operand& operand = lane_.shared.sources[i];
    int32_t peer = args_.group.rank;
    uint32_t route = 0;
    if (step.recv_count != 0) {
      peer = args_.table.peers[step.recv_begin + i];
      route = args_.table.route[step.recv_begin + i];
    }
    if (Peer::rank(peer) == args_.group.rank && src != Buffer::kNone) {
      if (src == Buffer::kScratch) {
        // Slices are whole packs, so a slice's accumulators lie as those of a message of its own would.
        operand = {ScratchAt(step.src_chunk) + at * slices_.Element() * slices_.Widening(), 0, ScratchForm(), 0, -1};
      } else {
        const char* base = src == Buffer::kInput ? args_.buffers.in : args_.buffers.out;
        operand = {const_cast<char*>(base) + offset, 0, Form::kRaw, 0, -1};
      }
      return true;
    }
    if (Peer::memory(peer)) {
      char* base = (src == Buffer::kInput ? lane_.shared.member_in : lane_.shared.member_out)[route];
      operand = {base + offset, 0, Form::kRaw, 0, -1};
      return true;
    }
    Connection& connection = lane_.ConnectionOf(route);
    const uint64_t number = connection.received++;
    const bool partial = slices_.Widening() > 1 && (step.flags & StepFlag::kRecvPartial);
    const uint64_t at_slot = number & (args_.group.slots - 1);
    char* slot = const_cast<char*>(connection.recv_slots) + at_slot * args_.group.slot_bytes;
    operand = {slot, number, partial ? Form::kPartialMessage : Form::kMessage, route, connection.peer};
    if constexpr (!Protocol::kCounts) return true;
    return AwaitMessage(lane_, connection.peer, connection.arrived + at_slot, number);
  }

  JAXRING_DEVICE bool PrepareTarget(const Step& step, uint64_t offset, uint64_t at, uint32_t i, bool has_dst) {
    Operand& operand = lane_.shared.targets[i];
    if (has_dst && i == 0) {
      if (step.dst_buffer == static_cast<uint8_t>(Buffer::kScratch)) {
        operand = {ScratchAt(step.dst_chunk) + at * slices_.Element() * slices_.Widening(), 0, ScratchForm(), 0, -1};
      } else {
        operand = {args_.buffers.out + offset, 0, Form::kRaw, 0, -1};
      }
      return true;
    }
    const uint32_t entry = step.send_begin + i - has_dst;
    const int32_t peer = args_.table.peers[entry];
    const uint32_t route = args_.table.route[entry];
    if (Peer::memory(peer)) {
      operand = {lane_.shared.member_out[route] + offset, 0, Form::kFar, 0, -1};
      return true;
    }
    Connection& connection = lane_.ConnectionOf(route);
    const uint64_t number = connection.sent++;
    const bool partial = slices_.Widening() > 1 && (step.flags & StepFlag::kSendPartial);
    char* slot = connection.send_slots + (number & (args_.group.slots - 1)) * args_.group.slot_bytes;
    operand = {slot, number, partial ? Form::kPartialMessage : Form::kMessage, route, connection.peer};
    if (number < args_.group.slots) return true;
    return AwaitAtLeast(lane_, Wait::kRoom, connection.peer, connection.credit, number + 1 - args_.group.slots);
  }

  JAXRING_DEVICE Form ScratchForm() const { return slices_.Widening() > 1 ? Form::kScratch : Form::kRaw; }
  JAXRING_DEVICE uint64_t MessageSize(const Operand& target, uint64_t elements, uint32_t element) const {
    return MessageBytes(Protocol::kProtocol, elements, element, VectorsOf(target, slices_.Widening()));
  }

  JAXRING_DEVICE void PublishTarget(const Operand& target, uint64_t elements, uint32_t element) {
    if (!IsMessage(target)) return;
    const Connection& connection = lane_.ConnectionOf(target.connection);
    if (connection.tail == nullptr) return;
    const uint32_t slot = static_cast<uint32_t>(target.number & (args_.group.slots - 1));
    if (connection.sizes != nullptr) {
      const bool whole = Protocol::Cleans(args_, target.number);
      StoreRelaxed(&connection.sizes[slot],
                   static_cast<uint32_t>(whole ? args_.group.slot_bytes : MessageSize(target, elements, element)));
    }
    StoreRelease(&connection.tail[slot], Stamp::Of(target.number, args_.call.number));
  }
  // LL lines have been read once their flags were seen, so nothing need be ordered before the slot is released.
  JAXRING_DEVICE void PublishSource(const Operand& source) {
    if (!IsMessage(source)) return;
    uint64_t* give = lane_.ConnectionOf(source.connection).give;
    if constexpr (Protocol::kCounts) {
      StoreRelease(give, source.number + 1);
    } else {
      StoreRelaxed(give, source.number + 1);
    }
  }

  const Args& args_;
  Lane lane_;
  Slices slices_;
};

}  // namespace jaxring::cuda
