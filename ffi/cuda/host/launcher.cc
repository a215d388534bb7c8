#include "cuda/host/launcher.h"

#include <algorithm>

#include "base/mutex.h"
#include "cuda/host/kernel_faults.h"
#include "cuda/kernels/epilogue_args.h"
#include "engine/operation/epilogue_fit.h"

namespace jaxring::cuda {
namespace {

// The longest slice whose messages fit a slot, in elements; 0 if none does. `element`, `result`: bytes of one element
// of the data, and of the output.
uint64_t LongestSlice(Protocol protocol, uint64_t slot_bytes, uint64_t element, uint64_t result, uint32_t widening) {
  const uint64_t unit = 512 / std::min(element, result);
  const auto fits = [&](uint64_t elements) {
    return SlotBytes(protocol, elements, element, widening) <= slot_bytes &&
           SlotBytes(protocol, elements, result, 1) <= slot_bytes;
  };
  uint64_t low = 0, high = slot_bytes / 512 + 1;  // in units; `low` fits, `high` does not
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    (fits(middle * unit) ? low : high) = middle;
  }
  return low * unit;
}

template <class T>
T* Upload(GpuMemory& memory, int device, const std::vector<T>& items) {
  if (items.empty()) return nullptr;
  char* copy = memory.Allocate(device, items.size() * sizeof(T));
  memory.Copy(device, copy, items.data(), items.size() * sizeof(T));
  return reinterpret_cast<T*>(copy);
}

}  // namespace

LaunchPlan::LaunchPlan(std::shared_ptr<Communicator> communicator, LaunchPlanSpec spec)
    : communicator_(std::move(communicator)),
      spec_(std::move(spec)),
      range_(spec_.range.empty() ? spec_.what : spec_.range) {
  const CommunicatorSpec& group = communicator_->ranks().spec();
  if (static_cast<uint32_t>(spec_.shape.nlanes) > group.lanes) {
    throw std::invalid_argument(spec_.what + ": the plan has " + std::to_string(spec_.shape.nlanes) +
                                " lanes, its communicator only " + std::to_string(group.lanes));
  }
  if (spec_.kernel.threads % kWarp != 0 || spec_.kernel.threads < kWarp || spec_.kernel.threads > kMaxThreads) {
    throw std::invalid_argument(spec_.what + ": the threads of a block must be a multiple of " + std::to_string(kWarp) +
                                " up to " + std::to_string(kMaxThreads) + ", not " +
                                std::to_string(spec_.kernel.threads));
  }
  const uint64_t element = ElementBytes(spec_.data.dtype);
  widening_ = Widening(spec_.data.dtype, spec_.data.reduces);
  if (spec_.kernel.multicast && spec_.data.reduces &&
      !SwitchReduces(spec_.data.dtype, spec_.data.op, spec_.data.divisor != 0)) {
    throw std::invalid_argument(spec_.what + ": NVLink switches do not reduce this dtype by this operation");
  }
  const WireShape wire = group.wires[static_cast<int>(spec_.kernel.protocol)];
  if (spec_.epilogue && spec_.epilogue->stages.size() > EpilogueArgs::kMostFunctions) {
    throw std::invalid_argument(spec_.what + ": an epilogue has at most " +
                                std::to_string(EpilogueArgs::kMostFunctions) + " functions on GPUs, not " +
                                std::to_string(spec_.epilogue->stages.size()));
  }
  if (spec_.epilogue && (spec_.kernel.fused || spec_.kernel.multicast || !HasFurtherKernels(spec_.kernel.protocol))) {
    throw std::invalid_argument(spec_.what + ": only step tables by Simple and LL have kernels that apply an epilogue");
  }
  if (spec_.kernel.fused == Fused::kAllReduceOneShot && StageBytes(in_bytes()) > group.stage_bytes) {
    throw std::invalid_argument(spec_.what + ": " + std::to_string(in_bytes()) +
                                " bytes do not fit a stage of the one-shot all-reduce, which has " +
                                std::to_string(group.stage_bytes) + " bytes for lines");
  }
  const uint64_t unit = 512 / std::min(element, result_bytes());
  slice_ = LongestSlice(spec_.kernel.protocol, wire.slot_bytes, element, result_bytes(), widening_);
  // A slice need not be longer than a piece.
  const uint64_t longest = (spec_.shape.block_elements + unit - 1) / unit * unit;
  slice_ = std::min(slice_, std::max(unit, longest));
  if (slice_ == 0) {
    throw std::invalid_argument(spec_.what + ": a slot of " + std::to_string(wire.slot_bytes) +
                                " bytes is too small for a message");
  }
  tile_ = std::min(slice_ * (wire.slots / 2), (std::max(slice_, longest) + slice_ - 1) / slice_ * slice_);
  communicator_->health().Describe(spec_.call, spec_.what);
}

// Tables and records are not freed: captured graphs use them, and only XLA knows when a graph is gone.
LaunchPlan::~LaunchPlan() = default;

void LaunchPlan::AddLocal(const RankTable& table, bool memory) {
  const int rank = table.rank;
  Gpu& gpu = communicator_->gpu();
  const CommunicatorSpec& group = communicator_->ranks().spec();
  const int device = group.ranks.at(rank).device;
  const std::vector<int> members = communicator_->ranks().Members(rank);
  std::vector<uint32_t> route;
  for (int32_t peer : table.peers) {
    const int other = Peer::rank(peer);
    const auto refuse = [&](const std::string& why) {
      throw std::invalid_argument(spec_.what + ": a step of rank " + std::to_string(rank) + " names rank " +
                                  std::to_string(other) + ", " + why);
    };
    if (other < 0 || other >= static_cast<int>(group.ranks.size())) {
      refuse("which does not exist");
    }
    if (Peer::memory(peer)) {
      const auto at = std::find(members.begin(), members.end(), other);
      if (at == members.end() && other != rank) {
        refuse("whose memory it cannot address: it is in another domain");
      }
      route.push_back(static_cast<uint32_t>(at - members.begin()));
    } else {
      const bool sends_to_itself = other == rank && spec_.message.half != Half::kBoth;
      if ((other != rank || sends_to_itself) && !communicator_->Connected(rank, other, spec_.kernel.protocol)) {
        refuse("to which there is no connection");
      }
      route.push_back(static_cast<uint32_t>(other));
    }
  }
  Local local{};
  Args& args = local.args;
  communicator_->Fill(rank, spec_.kernel.protocol, memory, &args);
  std::vector<uint64_t> piece_begin;
  jaxring::Plan plan;
  const uint64_t element = ElementBytes(spec_.data.dtype);
  plan.data.element_bytes = element;
  plan.epilogue = spec_.epilogue;
  plan.shape.block_elements = spec_.shape.block_elements;
  plan.shape.pieces = spec_.shape.pieces;
  plan.shape.tile_elements = tile_;
  for (int p = 0; p <= spec_.shape.pieces; ++p) piece_begin.push_back(plan.PieceBegin(p));
  args.table.steps = Upload(gpu.memory, device, table.steps);
  args.table.lane_begin = Upload(gpu.memory, device, table.lane_begin);
  args.table.peers = Upload(gpu.memory, device, table.peers);
  args.table.route = Upload(gpu.memory, device, route);
  args.table.piece_begin = Upload(gpu.memory, device, piece_begin);
  const uint64_t scratch = ScratchBytes(tile_, element, widening_) * spec_.shape.scratch_chunks * spec_.shape.nlanes;
  if (scratch != 0) args.buffers.scratch = communicator_->memory().Scratch(rank, scratch);
  args.shape.block_elements = spec_.shape.block_elements;
  args.shape.tiles = plan.Tiles();
  args.shape.tile_elements = tile_;
  args.shape.slice_elements = slice_;
  args.call.divisor = spec_.data.divisor;
  args.failure.timeout_ns = static_cast<uint64_t>(spec_.timeout_s * 1e9);
  args.call.number = spec_.call;
  args.shape.lanes = static_cast<uint32_t>(spec_.shape.nlanes);
  args.shape.pieces = static_cast<uint32_t>(spec_.shape.pieces);
  args.shape.scratch_chunks = static_cast<uint32_t>(spec_.shape.scratch_chunks);
  args.shape.in_blocks = static_cast<uint32_t>(spec_.shape.in_blocks);
  args.shape.out_blocks = static_cast<uint32_t>(spec_.shape.out_blocks);
  args.call.root = spec_.data.root;
  args.call.dtype = spec_.data.dtype;
  args.call.op = spec_.data.op;
  args.call.reduces = spec_.data.reduces;
  if (spec_.kernel.bulk_bytes != 0 && gpu.devices.Info(device).major >= 9) args.bulk_bytes = spec_.kernel.bulk_bytes;
  local.status = communicator_->memory().NewStatus();
  args.failure.status = local.status;
  args.state = reinterpret_cast<LaunchState*>(gpu.memory.Allocate(device, sizeof(LaunchState)));
  args.failure.trap = spec_.trap;
  local.members = memory;
  if (memory) {
    local.others = communicator_->ranks().OtherDevices(rank);
    local.replace_in = communicator_->memory().FindReplacement(rank, GroupMemory::Role::kInput, in_bytes());
    local.replace_out = communicator_->memory().FindReplacement(rank, GroupMemory::Role::kOutput, out_bytes());
  }
  if (spec_.message.half != Half::kBoth) AddPointToPoint(local, table);
  if (spec_.kernel.multicast) {
    local.multicast = communicator_->multicast().At(rank, *spec_.kernel.multicast);
    const uint32_t widen = SwitchFormOf(args).widen;
    if (MulticastSlice(*spec_.kernel.multicast, local.multicast->bytes, args.shape.lanes, args.group.ranks, widen) ==
        0) {
      throw std::invalid_argument(spec_.what + ": multicast memory of " + std::to_string(local.multicast->bytes) +
                                  " bytes has no room for a slice of each block");
    }
  }
  if (spec_.shape.ragged_row) {
    const uint64_t words = ExtentWords(args.shape.in_blocks, args.shape.pieces);
    local.extents = reinterpret_cast<uint64_t*>(gpu.memory.Allocate(device, words * sizeof(uint64_t)));
    args.extents = ExtentsAt(local.extents, args.shape.in_blocks, args.shape.pieces);
  }
  MutexLock lock(mutex_);
  locals_.emplace(rank, std::move(local));
}

LaunchPlan::Local* LaunchPlan::Find(int rank) {
  MutexLock lock(mutex_);
  const auto found = locals_.find(rank);
  return found == locals_.end() ? nullptr : &found->second;
}

void LaunchPlan::AddPointToPoint(Local& local, const RankTable& table) const {
  const WireShape wire = spec_.message.header_ring->ranks().spec().wires[static_cast<int>(Protocol::kSimple)];
  local.point_to_point = {nullptr, spec_.message.check, wire.slot_bytes, wire.slots, spec_.message.half == Half::kSend};
  if (table.peers.empty()) return;
  const int peer = Peer::rank(table.peers.front());
  if (!spec_.message.header_ring->Connected(table.rank, peer, Protocol::kSimple)) {
    throw std::invalid_argument(spec_.what + ": the message's queue has no connection between the ranks " +
                                std::to_string(table.rank) + " and " + std::to_string(peer));
  }
  local.point_to_point.header_ring = spec_.message.header_ring->ConnectionOf(table.rank, peer, Protocol::kSimple);
}

void LaunchPlan::SetMoves(int rank, const std::vector<Move>& moves, std::vector<int> arrivals) {
  const uint64_t block = spec_.shape.block_elements * ElementBytes(spec_.data.dtype);
  Local* found = Find(rank);
  if (found == nullptr) throw std::invalid_argument(spec_.what + ": rank " + std::to_string(rank) + " has no table");
  Local& local = *found;
  local.args.shape.lanes = 1;  // of the barriers
  local.copies.emplace(*communicator_, rank, moves, std::move(arrivals), block, spec_.shape.in_blocks,
                       spec_.shape.out_blocks);
}

jaxring::Status LaunchPlan::Launch(int rank, const void* in, void* out, uint64_t in_bytes, uint64_t out_bytes,
                                   void* stream, const RaggedVectors* vectors, const EpilogueBuffers* epilogue) {
  if (std::string why; communicator_->health().Broken(&why) ||
                       (spec_.message.header_ring && spec_.message.header_ring->health().Broken(&why))) {
    return jaxring::Status::Error(Code::kUnavailable, spec_.what + ": an earlier operation failed: " + why);
  }
  if (!spec_.shape.ragged_row && (in_bytes != this->in_bytes() || out_bytes != this->out_bytes())) {
    return jaxring::Status::Error(Code::kInternal, spec_.what + ": buffers of " + std::to_string(in_bytes) + " and " +
                                                       std::to_string(out_bytes) + " bytes do not fit the plan");
  }
  if ((spec_.epilogue != nullptr || epilogue != nullptr) &&
      !Fit(spec_.epilogue.get(), epilogue, spec_.shape.out_blocks * spec_.shape.block_elements)) {
    return jaxring::Status::Error(Code::kInternal,
                                  spec_.what + ": parameters, operands or states of its epilogue do not fit the plan");
  }
  if (in_bytes == 0 && out_bytes == 0) return {};
  const Range range(range_, std::max(in_bytes, out_bytes));
  try {
    Local* found = Find(rank);
    if (found == nullptr) {
      return jaxring::Status::Error(Code::kInternal,
                                    spec_.what + ": rank " + std::to_string(rank) + " is not in this process");
    }
    Local& local = *found;
    Args args = local.args;
    Place(local, rank, in, out, &args);
    if (!FitsPlace(args.buffers.in_region, args.buffers.in_offset) ||
        !FitsPlace(args.buffers.out_region, args.buffers.out_offset)) {
      throw std::runtime_error("a buffer's region or offset has more bits than a barrier's line");
    }
    if (local.copies) {
      local.copies->Enqueue(args, static_cast<const char*>(in), static_cast<char*>(out), stream);
    } else {
      Enqueue(local, rank, args, vectors, epilogue, in_bytes, out_bytes, stream);
    }
    return {};
  } catch (const std::exception& error) {
    return jaxring::Status::Error(Code::kInternal, spec_.what + ": " + error.what());
  }
}

void LaunchPlan::Enqueue(Local& local, int rank, const Args& args, const RaggedVectors* vectors,
                         const EpilogueBuffers* epilogue, uint64_t in_bytes, uint64_t out_bytes, void* stream) const {
  GpuKernels& kernels = communicator_->gpu().kernels;
  const int device = communicator_->ranks()[rank].device;
  if (local.multicast) return kernels.LaunchMulticast(device, *local.multicast, args, spec_.kernel.threads, stream);
  if (spec_.kernel.fused) return kernels.LaunchFused(device, *spec_.kernel.fused, args, spec_.kernel.threads, stream);
  if (spec_.epilogue) {
    return kernels.LaunchEpilogue(device, EpilogueOn(*spec_.epilogue, *epilogue), args, spec_.kernel.threads, stream);
  }
  if (spec_.message.half != Half::kBoth) {
    const bool silent = local.point_to_point.sends && local.point_to_point.header_ring == nullptr;
    return silent ? void()
                  : kernels.LaunchPointToPoint(device, local.point_to_point, args, spec_.kernel.threads, stream);
  }
  if (spec_.shape.ragged_row) {
    if (vectors == nullptr)
      throw std::invalid_argument(spec_.what + ": a ragged collective was launched without its sizes");
    const uint64_t row_bytes = std::max<uint64_t>(1, *spec_.shape.ragged_row * ElementBytes(spec_.data.dtype));
    const Ragged ragged{*vectors,      in_bytes / row_bytes, out_bytes / row_bytes, *spec_.shape.ragged_row,
                        local.extents, args.shape.in_blocks, args.shape.pieces};
    kernels.LaunchExtents(device, ragged, args, stream);
  }
  kernels.Launch(device, args, spec_.kernel.threads, stream);
}

void LaunchPlan::Break(const std::string& why) {
  communicator_->health().Break(why);
  if (spec_.message.header_ring) spec_.message.header_ring->health().Break(why);
}

std::string LaunchPlan::Fault(bool causes_only) const {
  MutexLock lock(mutex_);
  // Another rank's fault says more than the status of a rank that was aborted because of it.
  std::string consequence;
  for (const auto& [rank, local] : locals_) {
    // Before `fault` is set, a kernel may still be writing the other fields.
    if (__atomic_load_n(&local.status->fault, __ATOMIC_ACQUIRE) == 0) continue;
    const auto& ranks = communicator_->ranks().spec().ranks;
    const int32_t peer = local.status->peer;
    const bool known = peer >= 0 && peer < static_cast<int32_t>(ranks.size());
    const std::string text = Sentence(*local.status, ranks[rank].name, known ? ranks[peer].name : "nobody",
                                      communicator_->health().Described(local.status->number));
    if (!Follows(*local.status)) return spec_.what + ": " + text;
    consequence = spec_.what + ": " + text;
  }
  return causes_only ? "" : consequence;
}

}  // namespace jaxring::cuda
