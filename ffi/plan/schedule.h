// The step table, of which a schedule consists. `jaxring/plan/schedule.py` declares the same record as a NumPy dtype,
// and tests/plan/test_schedule_record.py checks that the two are equal. Planner, verifier and all engines use this
// definition.
#pragma once

#include <cstdint>

namespace jaxring {

// The buffer in which a step reads or writes a chunk. Scratch is private to a lane, holds accumulator elements, and has
// room for one tile of each chunk: a lane finishes all its steps for one tile before it begins the next.
enum class Buffer : uint8_t { kNone = 0, kInput = 1, kOutput = 2, kScratch = 3 };

enum class StepKind : uint8_t {
  kMove = 0,    // one source, any number of destinations
  kReduce = 1,  // left fold of the sources in the order in which the step lists them
  // Sends as one message the same piece of `dst_chunk` consecutive blocks from `src_chunk` on: of each block those of
  // several ranks of the memory domain, in the list's order.
  kGather = 2,
  // Receives such a message into the same piece of `src_chunk` consecutive blocks from `dst_chunk` on: of the rank's
  // own output and of those of the memory peers to which it sends, in the order of all these ranks.
  kSpread = 3,
};

enum StepFlag : uint8_t {
  // The value holds every rank's contribution: apply mean's division and round to the result's dtype, once.
  kFinal = 1,
  // Messages that this step receives hold accumulator elements (partial results) instead of the data's own dtype.
  kRecvPartial = 2,
  // Messages that this step sends hold accumulator elements.
  kSendPartial = 4,
  // The step fills the destination chunk with zeros (permute's ranks without a source).
  kZero = 8,
  // The plan's epilogue is applied to the value, which is complete here and becomes a result. With kFinal only.
  kEpilogue = 16,
};

// An entry of a step's peer list: the rank in the low bits, and whether it is a memory peer. Memory peers are addressed
// directly: a source is read from the peer's own `src` chunk, and a destination is written to the peer's own `dst`
// chunk. Other peers are reached by messages. A rank among its own step's sources stands for its local `src` chunk.
// Without such a chunk it stands for a message to itself (a send whose receive is another operation).
struct Peer {
  static constexpr int32_t kMemory = 1 << 24;
  static constexpr int32_t kRankMask = kMemory - 1;
  static constexpr int32_t rank(int32_t peer) { return peer & kRankMask; }
  static constexpr bool memory(int32_t peer) { return (peer & kMemory) != 0; }
};

// A step moves one tile of one chunk. Its sources are `recv_count` entries of the rank's peer list from `recv_begin` on
// (none: the local `src` chunk alone). Its destinations are the local `dst` chunk, unless that buffer is kNone, and
// `send_count` peers from `send_begin` on. Chunk ids are block * pieces + piece.
struct Step {
  uint8_t kind;
  uint8_t flags;
  uint8_t src_buffer;
  uint8_t dst_buffer;
  int32_t src_chunk;
  int32_t dst_chunk;
  uint32_t recv_begin;
  uint32_t send_begin;
  uint16_t recv_count;
  uint16_t send_count;
};
static_assert(sizeof(Step) == 24, "the table's record is 24 bytes");

// In a plan with an epilogue: whether results are in the messages and buffers from which a step reads whole values, and
// in those to which it writes them. The output, and messages for it or from it, hold results.
constexpr bool ReadsResults(const Step& step) {
  const auto output = static_cast<uint8_t>(Buffer::kOutput);
  return step.src_buffer == output || (step.dst_buffer == output && !(step.flags & StepFlag::kEpilogue));
}
constexpr bool WritesResults(const Step& step) { return (step.flags & StepFlag::kEpilogue) != 0 || ReadsResults(step); }

}  // namespace jaxring
