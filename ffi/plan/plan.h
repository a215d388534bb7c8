// A plan: a schedule bound to a dtype, an operation, a message size and the processes that take part. Python makes it
// once for each call site and group, and it does not change afterwards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/epilogue.h"
#include "plan/program_latch.h"
#include "plan/schedule.h"
#include "quantize/quantize.h"
#include "reduce/kernels.h"
#include "transport/core/ring.h"

namespace jaxring {

struct RankPlace {
  int process;
  int device;
  std::string name;  // "rank 3 (process 1 on host b)", for messages
};

// One local rank's part of the schedule.
struct RankTable {
  int rank;
  int caller = -1;  // its rank as the call site counts, if that differs: lost ranks are not in the plan
  int site_rank() const { return caller < 0 ? rank : caller; }
  std::vector<Step> steps;
  std::vector<uint32_t> lane_begin;  // nlanes + 1
  std::vector<int32_t> peers;
  // A flow is the traffic with one peer rank in one lane. `flow` has the number of the flow of each entry of `peers`.
  std::vector<uint32_t> flow;
  std::vector<int> flow_rank;
  std::vector<char> idle;  // by lane: whether it has no element to move
  void NumberFlows();
};

// Makes a table from the bytes of its three arrays. Throws std::invalid_argument if they do not fit each other or the
// number of lanes.
RankTable ReadTable(int rank, std::string_view steps, std::string_view lane_begin, std::string_view peers, int nlanes);

// The messages of an all-reduce of float32 between two ranks as codes of whole blocks. The owner of a piece adds what
// the other rank's codes stand for to its own values, and both have the values that the codes of the sum stand for.
struct PlanCodes {
  QuantFormat format{};
  size_t block_bytes = 0;
  bool stochastic = false;
  uint64_t first_word = 0;  // as in `Rounding`, of the operand's first element
};

enum class Half : uint8_t { kBoth = 0, kSend = 1, kRecv = 2 };

struct Plan {
  // For the recorder.
  struct Record {
    std::shared_ptr<const std::string> label;  // JSON for the recorder's readers; opaque here
    std::shared_ptr<const std::string> spec;   // JSON for `jaxring trace replay`; null where nothing is saved
    // Owned by the recorder, under its lock: where it wrote `what` and `label`, and their length.
    mutable uint64_t text_at = 0;
    mutable uint32_t text_bytes = 0;
  };

  // What it computes.
  struct Data {
    DType dtype{};
    bool exact = false;                // sums are computed by Kernels::sum_exactly; set only where there is one
    const Kernels* kernels = nullptr;  // nullptr for collectives that only move data
    uint64_t divisor = 0;
    size_t element_bytes = 1, partial_bytes = 1;
  };

  // How the buffers are cut.
  struct Shape {
    uint64_t block_elements = 0;
    uint64_t tile_elements = 0;
    uint64_t piece_bytes = 64;  // pieces of a block begin at multiples of this
    int in_blocks = 1, out_blocks = 1, pieces = 1, scratch_chunks = 0, nlanes = 1;
    std::vector<uint64_t> bounds;  // pieces + 1: `PieceBegin` of each
    uint64_t tiles = 0;            // `Tiles()`
  };

  // The ranks, and which of them this process plays.
  struct Group {
    int process = 0;
    std::vector<RankPlace> ranks;
    std::vector<RankTable> locals;
    std::vector<int> local_of_rank;  // -1: another process
  };

  std::string what;    // "all_reduce sum float32[1024] over 'data' at train.py:31", for messages
  uint64_t key = 0;    // hash of what every participating process agrees on; sequence numbers count under it
  uint64_t epoch = 0;  // of the job's links: a plan serves no other
  // Hash of dtype and shape as the site sees them. Every message carries it, since the send and the receive of a
  // message are two sites.
  uint32_t check = 0;
  Half half = Half::kBoth;
  bool sends_first = false;  // its ranks send all that they have to before they need anything
  Protocol protocol = Protocol::kMemory;
  int channels = 1;
  Data data;
  std::shared_ptr<const PlanEpilogue> epilogue;  // null: results are complete values as they are
  std::optional<PlanCodes> codes;                // none: messages hold values
  Shape shape;
  Group group;
  size_t output_bytes = 0;  // `result_bytes()`
  double timeout_s = 300;
  std::shared_ptr<ProgramLatch> latch;  // may be null
  Record record;

  // Computes the derived members, once the local ranks are set.
  void Seal();
  // Piece boundaries lie on 64-byte lines of the block, or further apart, so neighbours in memory never share one. In
  // codes they lie between blocks, and the first rank's half has the odd one.
  uint64_t PieceBegin(uint64_t piece) const {
    uint64_t unit = std::max<uint64_t>(1, shape.piece_bytes / std::min(data.element_bytes, result_bytes()));
    uint64_t units = (shape.block_elements + unit - 1) / unit;
    uint64_t pieces = static_cast<uint64_t>(shape.pieces), up = codes ? pieces - 1 : 0;
    return std::min(shape.block_elements, (units * piece + up) / pieces * unit);
  }
  uint64_t Tiles() const {
    uint64_t longest = 0;
    for (int p = 0; p < shape.pieces; ++p) longest = std::max(longest, PieceBegin(p + 1) - PieceBegin(p));
    return (longest + shape.tile_elements - 1) / shape.tile_elements;
  }
  // Whether messages hold codes. A rank that the others have left alone sends none.
  bool sends_codes() const { return codes.has_value() && group.ranks.size() > 1; }
  // Bytes of a message of `elements` values of `each` bytes.
  size_t message_bytes(uint64_t elements, size_t each) const {
    if (!sends_codes()) [[likely]]
      return elements * each;
    return QuantBlocks(elements) * codes->block_bytes;
  }
  bool held_back() const { return latch != nullptr && !latch->open(); }
  // Whether all ranks belong to this process.
  bool alone() const { return group.locals.size() == group.ranks.size(); }
  bool memory_only() const { return protocol == Protocol::kMemory; }
  uint64_t in_bytes() const { return shape.in_blocks * shape.block_elements * data.element_bytes; }
  uint64_t out_bytes() const { return shape.out_blocks * shape.block_elements * result_bytes(); }
  // Bytes of an element of the output.
  size_t result_bytes() const { return epilogue == nullptr ? data.element_bytes : epilogue->result->element_bytes; }
  // Bytes of an element in the messages and buffers from which a step reads whole values, and in those to which it
  // writes them.
  size_t source_bytes(const Step& step) const {
    if (epilogue == nullptr) [[likely]]
      return data.element_bytes;
    return ReadsResults(step) ? result_bytes() : data.element_bytes;
  }
  size_t destination_bytes(const Step& step) const {
    return step.flags & StepFlag::kEpilogue ? result_bytes() : source_bytes(step);
  }
};

// Checks, before Seal, that a plan's execution touches only its ranks' buffers, its lanes' scratch and message slots.
// Throws std::invalid_argument with the rank and step otherwise. That the plan ends and computes its collective is not
// checked here: jaxring/plan/verify.py does so, for users' algorithms before they run and for built-in ones in tests.
void CheckPlan(const Plan& plan, uint32_t slot_bytes);

}  // namespace jaxring
