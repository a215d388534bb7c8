// Checks what the interpreter relies on: no step reaches outside the buffers, the scratch or the slots. Tables come
// from Python, and users write schedules of their own.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace jaxring {
namespace {

// Limits far beyond any real plan, and small enough that no product below overflows.
constexpr int kMostChunks = 1 << 22;
constexpr uint64_t kMostTile = uint64_t{1} << 32, kMostElements = uint64_t{1} << 40, kMostInAll = uint64_t{1} << 50;

class Checker {
 public:
  Checker(const Plan& plan, std::vector<bool> here, uint32_t slot_bytes) : plan_(plan), here_(std::move(here)) {
    payload_ = (plan.protocol == Protocol::kLL ? LLShape() : SimpleShape(slot_bytes)).payload_bytes;
    lengths_.reserve(plan.shape.pieces);
    for (int p = 0; p < plan.shape.pieces; ++p) lengths_.push_back(plan.PieceBegin(p + 1) - plan.PieceBegin(p));
  }

  void Table(const RankTable& table) {
    table_ = &table;
    for (int32_t peer : table.peers) {
      if (peer < 0 || peer >= 2 * Peer::kMemory || Peer::rank(peer) >= static_cast<int>(plan_.group.ranks.size())) {
        throw std::invalid_argument("a step's peer is not a rank of the plan");
      }
    }
    for (int lane = 0; lane < plan_.shape.nlanes; ++lane) {
      scratch_.assign(plan_.shape.scratch_chunks, kUnwritten);
      for (step_ = table.lane_begin[lane]; step_ < table.lane_begin[lane + 1]; ++step_) Check(table.steps[step_]);
    }
  }

 private:
  static constexpr uint64_t kUnwritten = ~uint64_t{0};

  [[noreturn]] void Fail(const char* what) const {
    throw std::invalid_argument("rank " + std::to_string(table_->rank) + ", step " + std::to_string(step_) + ": " +
                                what);
  }

  // The length of a chunk, in elements.
  uint64_t Chunk(Buffer buffer, int32_t chunk) const {
    const int blocks = buffer == Buffer::kInput ? plan_.shape.in_blocks : plan_.shape.out_blocks;
    if (chunk < 0 || chunk >= (buffer == Buffer::kScratch ? plan_.shape.scratch_chunks : blocks * plan_.shape.pieces)) {
      Fail("a chunk number is out of range");
    }
    return buffer == Buffer::kScratch ? scratch_[chunk] : lengths_[chunk % plan_.shape.pieces];
  }

  bool Here(int32_t peer) const { return here_[Peer::rank(peer)]; }

  void Check(const Step& step) {
    if (step.kind > static_cast<uint8_t>(StepKind::kSpread) ||
        step.src_buffer > static_cast<uint8_t>(Buffer::kScratch) ||
        step.dst_buffer > static_cast<uint8_t>(Buffer::kScratch)) {
      Fail("its kind or a buffer is unknown");
    }
    const auto kind = static_cast<StepKind>(step.kind);
    const auto src = static_cast<Buffer>(step.src_buffer), dst = static_cast<Buffer>(step.dst_buffer);
    const int32_t* recv = table_->peers.data() + step.recv_begin;
    const int32_t* send = table_->peers.data() + step.send_begin;
    if (dst == Buffer::kInput) Fail("it writes the input");
    uint64_t length = kUnwritten;
    if (dst == Buffer::kOutput) length = Chunk(dst, step.dst_chunk);
    // Messages of several chunks hold values of the data's width, and pass by what is checked of results.
    if (plan_.epilogue != nullptr && (kind == StepKind::kGather || kind == StepKind::kSpread))
      Fail("it gathers or spreads chunks in a plan with an epilogue");
    if (plan_.codes && (kind == StepKind::kGather || kind == StepKind::kSpread))
      Fail("it gathers or spreads chunks in a plan in codes");
    if (kind == StepKind::kSpread) return Spread(step, recv, send, src, dst);
    if (src != Buffer::kNone) {
      const uint64_t found = Chunk(src, step.src_chunk);
      if (found == kUnwritten) Fail("it reads scratch that no step has written");
      if (length != kUnwritten && found != length) Fail("its chunks have different lengths");
      length = found;
    }
    if (length == kUnwritten) Fail("it has no chunk in memory or scratch, so its length is unknown");
    if (step.flags & StepFlag::kZero) {
      if (dst != Buffer::kOutput) Fail("a ZERO step's destination is not the output");
      if (kind != StepKind::kMove) Fail("a ZERO step is a MOVE");
      return;
    }
    if (kind == StepKind::kGather) return Gather(step, recv, send, src, dst);
    if (dst == Buffer::kScratch) {
      Chunk(dst, step.dst_chunk);
      scratch_[step.dst_chunk] = length;
    }
    Sources(step, recv, src);
    Destinations(step, send, dst);
    if (plan_.codes) Codes(step, src, dst);
    const bool divides = (step.flags & StepFlag::kFinal) && plan_.data.divisor != 0;
    if (plan_.data.exact) Exact(step, kind);
    Results(step, kind, src, dst);
    if (plan_.data.kernels == nullptr && (step.recv_count > 1 || divides))
      Fail("it reduces, but the plan's collective only moves data");
  }

  // An exact sum is rounded once, so one step adds all that there is.
  void Exact(const Step& step, StepKind kind) const {
    if (step.flags & (StepFlag::kRecvPartial | StepFlag::kSendPartial)) Fail("it has partial results of an exact sum");
    if (kind == StepKind::kReduce && !(step.flags & StepFlag::kFinal)) Fail("it rounds a part of an exact sum");
  }

  // In codes a step sends the codes of its operand, or completes a sum of one message and its operand, or receives.
  void Codes(const Step& step, Buffer src, Buffer dst) const {
    const bool sends = step.recv_count == 0 && src == Buffer::kInput && dst == Buffer::kNone && step.send_count == 1;
    const bool completes = step.recv_count == plan_.group.ranks.size() && src == Buffer::kInput &&
                           dst == Buffer::kOutput && (step.flags & StepFlag::kFinal) &&
                           step.send_count + 1u == plan_.group.ranks.size();
    const bool receives =
        step.recv_count == 1 && src == Buffer::kNone && dst == Buffer::kOutput && step.send_count == 0;
    if (!sends && !completes && !receives) Fail("it is none of an all-reduce in codes");
    for (uint32_t i = 0; i < step.recv_count; ++i) {
      const int32_t peer = table_->peers[step.recv_begin + i];
      const int wanted = completes ? static_cast<int>(i) : 1 - table_->rank;
      if (Peer::memory(peer) || Peer::rank(peer) != wanted) Fail("its codes are not those of the other rank");
    }
    for (uint32_t i = 0; i < step.send_count; ++i) {
      const int32_t peer = table_->peers[step.send_begin + i];
      if (Peer::memory(peer) || Peer::rank(peer) != 1 - table_->rank) Fail("its codes go not to the other rank");
    }
  }

  // The epilogue makes a result of a value, once, and only results go to the output.
  void Results(const Step& step, StepKind kind, Buffer src, Buffer dst) const {
    const bool applies = step.flags & StepFlag::kEpilogue, final = step.flags & StepFlag::kFinal;
    if (applies && (plan_.epilogue == nullptr || !final || kind != StepKind::kReduce || src == Buffer::kOutput ||
                    dst == Buffer::kScratch || (step.flags & StepFlag::kSendPartial))) {
      Fail("it applies an epilogue to a value that is not complete, or the plan has none");
    }
    if (plan_.epilogue == nullptr || applies) {
      if (applies && !plan_.epilogue->further.empty() && (dst != Buffer::kOutput || step.send_count != 0))
        Fail("it applies an epilogue with a rank's own operands to a value for other ranks");
      return;
    }
    if (final) Fail("it completes a value without the plan's epilogue");
    const bool moves = kind == StepKind::kMove && step.recv_count <= 1 &&
                       !(step.flags & (StepFlag::kRecvPartial | StepFlag::kSendPartial));
    if (dst == Buffer::kOutput && (!moves || (src != Buffer::kOutput && src != Buffer::kNone)))
      Fail("it writes to the output without the plan's epilogue");
    if (src == Buffer::kOutput && (!moves || dst == Buffer::kScratch))
      Fail("it folds what the plan's epilogue has made");
  }

  void Sources(const Step& step, const int32_t* recv, Buffer src) const {
    if (step.recv_count == 0 && src == Buffer::kNone) Fail("it has no source");
    for (int i = 0; i < step.recv_count; ++i) {
      const bool own = Peer::rank(recv[i]) == table_->rank;
      if (Peer::memory(recv[i])) {
        if (!Here(recv[i])) Fail("it addresses the memory of a rank of another process");
        if (src == Buffer::kNone || (src == Buffer::kScratch && !own))
          Fail("it reads a memory peer without naming a chunk of its input or output");
      } else if (!own || src == Buffer::kNone) {
        Message(step.flags & StepFlag::kRecvPartial);
      }
    }
  }

  void Destinations(const Step& step, const int32_t* send, Buffer dst) const {
    if (dst == Buffer::kNone && step.send_count == 0) Fail("it has no destination");
    for (int i = 0; i < step.send_count; ++i) {
      if (!Peer::memory(send[i])) {
        Message(step.flags & StepFlag::kSendPartial);
      } else if (!Here(send[i])) {
        Fail("it addresses the memory of a rank of another process");
      } else if (dst != Buffer::kOutput) {
        Fail("it writes to a memory peer without naming a chunk of its output");
      }
    }
  }

  void Message(bool partial) const {
    if (plan_.protocol == Protocol::kMemory)
      Fail("it sends or receives a message, but the plan's protocol is memory only");
    const size_t whole = std::max(plan_.data.element_bytes, plan_.result_bytes());
    if (plan_.message_bytes(plan_.shape.tile_elements, partial ? plan_.data.partial_bytes : whole) > payload_) {
      Fail("its messages do not fit a slot");
    }
  }

  // The length of a gathered message is checked when it is sent.
  void Gather(const Step& step, const int32_t* recv, const int32_t* send, Buffer src, Buffer dst) const {
    if (src != Buffer::kInput || dst != Buffer::kNone || step.recv_count == 0 || step.send_count != 1 ||
        Peer::memory(send[0])) {
      Fail("a GATHER step needs input chunks of one rank or more, and one receiver of the message");
    }
    Message(false);
    Blocks(step.src_chunk, step.dst_chunk, plan_.shape.in_blocks, "it gathers more blocks than the input has");
    for (int i = 0; i < step.recv_count; ++i) {
      if (!Here(recv[i])) Fail("it addresses the memory of a rank of another process");
    }
  }

  void Spread(const Step& step, const int32_t* recv, const int32_t* send, Buffer src, Buffer dst) const {
    if (src != Buffer::kNone || dst != Buffer::kOutput || step.recv_count != 1 || Peer::memory(recv[0]) ||
        (step.flags & StepFlag::kZero)) {
      Fail("a SPREAD step needs one message and blocks of the output");
    }
    Message(false);
    Blocks(step.dst_chunk, step.src_chunk, plan_.shape.out_blocks, "it spreads over more blocks than the output has");
    Destinations(step, send, dst);
    int before = -1;
    for (int i = 0; i < step.send_count; ++i) {
      const int rank = Peer::rank(send[i]);
      if (!Peer::memory(send[i]) || rank <= before || rank == table_->rank)
        Fail("a SPREAD step writes to its own output, and to those of memory peers in the order of their ranks");
      before = rank;
    }
  }

  // The same piece of so many blocks, from a chunk on.
  void Blocks(int32_t chunk, int32_t blocks, int in_all, const char* too_many) const {
    if (blocks < 1) Fail("it gathers or spreads no blocks");
    if (chunk + (int64_t{blocks} - 1) * plan_.shape.pieces >= int64_t{in_all} * plan_.shape.pieces) Fail(too_many);
  }

  const Plan& plan_;
  const std::vector<bool> here_;  // by rank: whether it belongs to this process
  uint64_t payload_;
  std::vector<uint64_t> lengths_;  // of each piece
  const RankTable* table_ = nullptr;
  uint32_t step_ = 0;
  std::vector<uint64_t> scratch_;  // the length of each chunk in the lane's scratch
};

void CheckShape(const Plan& plan) {
  auto fits = [&plan](int blocks) { return blocks >= 0 && blocks <= kMostChunks / plan.shape.pieces; };
  if (plan.shape.pieces < 1 || plan.shape.pieces > kMostChunks || !fits(plan.shape.in_blocks) ||
      !fits(plan.shape.out_blocks) || plan.shape.scratch_chunks < 0 || plan.shape.scratch_chunks > kMostChunks ||
      plan.shape.nlanes < 1 || plan.shape.nlanes > MessageId::kSecondEngine || plan.channels < 1 ||
      plan.protocol > Protocol::kSimple) {
    throw std::invalid_argument("a plan's number of pieces, blocks, lanes, channels or scratch chunks is out of range");
  }
  if (plan.codes &&
      (plan.data.dtype != DType::kF32 || plan.data.kernels != FindKernels(DType::kF32, ReduceOp::kSum) ||
       plan.epilogue != nullptr || plan.group.ranks.empty() || plan.group.ranks.size() > 2 ||
       plan.shape.in_blocks != 1 || plan.shape.out_blocks != 1 || plan.shape.tile_elements % kQuantBlock != 0 ||
       plan.shape.piece_bytes % (kQuantBlock * sizeof(float)) != 0 ||
       plan.shape.pieces % static_cast<int>(plan.group.ranks.size()) != 0)) {
    throw std::invalid_argument("a plan in codes is not one of a sum of float32 of two ranks, in whole blocks");
  }
  const uint64_t blocks = static_cast<uint64_t>(std::max(plan.shape.in_blocks, plan.shape.out_blocks));
  if (plan.shape.tile_elements < 1 || plan.shape.tile_elements > kMostTile ||
      plan.shape.block_elements > kMostElements || blocks * plan.shape.block_elements > kMostInAll) {
    throw std::invalid_argument("a plan's tile or block size is out of range");
  }
}

}  // namespace

void CheckPlan(const Plan& plan, uint32_t slot_bytes) {
  CheckShape(plan);
  const int ranks = static_cast<int>(plan.group.ranks.size());
  std::vector<bool> here(ranks, false);
  for (const RankTable& table : plan.group.locals) {
    if (table.rank < 0 || table.rank >= ranks || here[table.rank] ||
        plan.group.ranks[table.rank].process != plan.group.process) {
      throw std::invalid_argument("a table's rank is not one of this process, or has a table already");
    }
    if (table.lane_begin.size() != static_cast<size_t>(plan.shape.nlanes) + 1) {
      throw std::invalid_argument("a table's number of lanes is not the plan's");
    }
    here[table.rank] = true;
  }
  Checker checker(plan, std::move(here), slot_bytes);
  for (const RankTable& table : plan.group.locals) checker.Table(table);
}

}  // namespace jaxring
