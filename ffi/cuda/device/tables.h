// The arguments of the CUDA engine's launches: plain records that the host fills and kernels read.
// ffi/cuda/kernels/kernel_launch.h starts kernels; docs/cuda.md explains protocols and ordering.
//
// Ownership: the host owns all memory that a pointer here names. It outlives every launch that was given it, also as
// part of a CUDA graph, and the host does not change it while such a launch may run, unless a comment below says so.
// "Own" memory is on this rank's device or pinned on its host; "the peer's" is addressed through whatever mapping (peer
// access, CUDA IPC, VMM) makes it readable and writable here. Words that two sides share are naturally aligned, written
// by one side only, and are zero before the first launch.
//
// Launches on one communicator come in the same order on each of its ranks, and one after another on each rank's device
// (one stream, or streams that wait for each other). The host counts nothing per launch: counters are in device
// memory and each launch continues from the last one, so a captured graph can be replayed.
//
// Several ranks on one device: all lanes of a communicator's ranks there must be resident together. (A lane waits for
// lanes of the same number, and in a launch that copies its buffers for all lanes of its own rank.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/protocol.h"
#include "plan/schedule.h"
#include "reduce/kernels.h"

namespace jaxring::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 384;        // of a block; a multiple of kWarp
inline constexpr uint32_t kMaxStepPeers = 64;  // sources, and destinations, that one step may list; and members
inline constexpr uint32_t kMaxScratch = 16;    // Args::Shape::scratch_chunks

// A message's number, from 1, and the low half of its sender's Args::Call::number, in one word: a slot's counter, and a
// flag of LL128. So a reader that sees the message there knows which call it is of. Flags of LL have 16 bits of each.
struct Stamp {
  static constexpr int kNumberBits = 48;  // no number comes again
  static constexpr uint64_t kNumber = (uint64_t{1} << kNumberBits) - 1;
  static constexpr uint64_t Of(uint64_t message, uint32_t call) {
    return (message + 1) | uint64_t{call} << kNumberBits;
  }
  // The part of Args::Call::number that a word has.
  static constexpr uint32_t ShortCall(uint32_t call) { return call & 0xffff; }
  // Whether a slot with that word has this message, of whichever call. Before it the slot has older ones.
  static constexpr bool Has(uint64_t word, uint64_t message) { return (word & kNumber) > message; }
  static constexpr uint32_t CallOf(uint64_t word) { return static_cast<uint32_t>(word >> kNumberBits); }
};

// The traffic of one lane with one peer, both directions, under one protocol: `slots` slots each way of `slot_bytes`
// each (Args::Group), 128-byte aligned. Message number m (from 0, over the life of the communicator) lies in slot
// m % slots. The sender fills a slot only while sent - *credit < slots; the receiver gives it back through `give`.
//
// For a peer over the network `send_slots` and `recv_slots` are own memory. The proxy thread reads `tail` and `sizes`
// to learn what to send, and writes `credit` and `arrived` as a peer's kernel would. It copies the bytes of a slot
// unchanged under every protocol: message numbers, and hence flags, are the same on both sides.
//
// An array of these is in device memory. Kernels advance `sent` and `received` and change nothing else.
struct alignas(128) Connection {
  char* send_slots;        // where our messages go: the peer's memory
  const char* recv_slots;  // where the peer's messages come: own memory
  uint64_t* tail;  // the peer's: [slots], the Stamp of each slot's message. Written (release) after the message.
                   // kSimple, or network
  const uint64_t* credit;   // own: messages of ours that the peer has taken
  const uint64_t* arrived;  // own: what the peer writes by its `tail`. kSimple only
  uint64_t* give;           // the peer's: messages that we have taken. Written (release) after a message was read
  uint32_t* sizes;          // nullptr, or [slots]: bytes used in each slot, written before `tail`
  uint64_t sent;            // our messages so far
  uint64_t received;        // the peer's messages that we have taken so far
  int32_t peer;             // its rank, for Status
};

// One lane's epoch barrier with one memory peer: one side writes it, the other reads it. `met` and `end` are epochs:
// the number of this launch from 1, counted per lane in Args::Group::epochs.
//
// begun: the writer's stream has reached this launch, so peers may read its input and write its output. Two lines of
// LL, whose data say where the writer's input and output are (PackedPlace). Each of a line's flags is 16 bits of the
// epoch and 16 of Args::Call::number. So a reader that sees a line has its address and knows which call the writer is
// in, and the writer needs no fence. Flags of 16 bits are enough, since a line only holds this epoch or the one before.
// met: how far the writer has come in a launch that meets several times (multicast.h). end: the writer's lane is done.
// It does not access the reader's buffers any more, and its writes to them are visible. A kernel ends only after all
// lanes of all its memory peers have reached `end`, so its buffers are valid until then. On both sides the begin of an
// epoch follows the end of the epoch before, so one record is enough.
struct alignas(128) EpochBarrier {
  alignas(16) uint32_t begun[2][4];
  uint64_t met;
  uint64_t end;
};

// A region and an offset in it (see Member::regions) in one word.
inline constexpr int kOffsetBits = 48;
constexpr uint64_t PackedPlace(uint64_t region, uint64_t offset) { return region << kOffsetBits | offset; }
constexpr bool FitsPlace(uint64_t region, uint64_t offset) {
  return region >> (64 - kOffsetBits) == 0 && offset >> kOffsetBits == 0;
}

// Another rank whose memory this one addresses. Sorted by rank where there are several; a domain's ranks all list each
// other. A buffer of a member is at regions[region] + offset: the host registers each allocation under a region number,
// tells it to the members, and they enter the address at which they mapped it, before the first launch that names it.
// (Within one process: one region with base 0, and offsets are addresses.)
struct Member {
  EpochBarrier* theirs;      // the member's memory: [lanes], written by us
  const EpochBarrier* ours;  // own memory: [lanes], written by the member
  const uint64_t* regions;   // own memory, this rank's view of the member's registered allocations
  // Of the fused one-shot all-reduce alone, 2 * Args::Group::stage_bytes each.
  char* stage_theirs;      // the member's memory: where we put data for it
  const char* stage_ours;  // own memory: where the member puts data for us
  int32_t rank;
};

enum class Fault : uint32_t {
  kNone = 0,
  kTimeout = 1,     // a wait passed Args::Failure::timeout_ns
  kAborted = 2,     // *Args::Failure::abort was set; the results are not complete
  kPeerFailed = 3,  // a memory peer met one of these first
  kBadTable = 4,    // the table asks for what the kernel cannot do
  kDisagrees = 5,   // the message that came is of another dtype or shape than its receiver's
  kBadSizes = 6,    // a ragged collective's offsets or sizes cannot be served: see Sizes
  kOtherCall = 7,   // a peer is in another call of the communicator: `number` has that call, or the low half of it
};

enum class Wait : uint32_t {
  kNothing = 0,
  kMessage = 1,
  kRoom = 2,
  kBegin = 3,
  kEnd = 4,
  kCopies = 5,  // this rank's other lanes: see staging.h
};

// The first fault of any launch that was given this record; own memory that the host can read (pinned). `claimed` is
// taken by the first thread that fails, `fault` is written last (release): read it first.
struct Status {
  uint32_t fault;  // Fault
  uint32_t claimed;
  int32_t rank;   // the rank that waited
  int32_t peer;   // the rank that it waited for; -1: none
  uint32_t wait;  // Wait: what it waited for
  uint32_t lane;
  uint32_t step;  // of the lane
  uint32_t tile;
  uint64_t number;     // of the message or the epoch that it waited for
  uint64_t waited_ns;  // since the launch began, or the part of it before or after a meeting of staging.h
};

// What the launches of one plan on one rank keep in own device memory. Zero before the first.
struct LaunchState {
  uint64_t ended;   // lanes that have ended, of all launches so far
  uint64_t failed;  // nonzero: a barrier of copy_barrier.h has failed
  uint64_t met;     // lanes that have come to a meeting of staging.h, of all launches so far
};

// Where a ragged collective's chunks lie, in elements, one entry per chunk. The arrays are own memory, and earlier work
// of the same stream may write them. Such schedules move data by messages only.
struct Extents {
  const uint64_t* in_offset;
  const uint64_t* in_length;
  const uint64_t* out_offset;
  const uint64_t* out_length;
  const uint64_t* longest;  // one entry: no length is greater; kBadSizes if the sizes cannot be served
  static constexpr uint64_t kBadSizes = uint64_t{1} << 63;
};

// Where not all members can address a call's buffers, Args::buffers are other memory, which they can, and the launch
// copies into it and out of it (staging.h). 0 bytes: there is nothing to copy.
struct Staging {
  const char* from;
  char* to;
  uint64_t in_bytes, out_bytes;
  constexpr bool any() const { return (in_bytes | out_bytes) != 0; }
};

// One rank's launch. Passed by value. Counts are of elements unless they say bytes.
struct Args {
  // The rank's steps: own memory, the same for every launch of a plan. lane_begin has lanes + 1 entries; `route` goes
  // with `peers`: the number of a message peer's connection within its lane, or of a memory peer's member.
  struct Table {
    const Step* steps;
    const uint32_t* lane_begin;
    const int32_t* peers;
    const uint32_t* route;
    const uint64_t* piece_begin;  // [pieces + 1]: where each piece of a block begins (Plan::PieceBegin)
  };

  // The communicator: who its ranks are, and where this one meets them.
  struct Group {
    Connection* connections;  // [lanes][connections_per_lane]
    const Member* members;    // [member_count]; 0: no memory is shared and no barrier is passed
    uint64_t* epochs;  // [epoch_lanes][2] own device memory: launches that passed a lane's barriers; one-shot launches
    uint64_t slot_bytes;  // at least SlotBytes()
    uint64_t stage_bytes;
    uint32_t slots;  // a power of two
    uint32_t connections_per_lane;
    uint32_t member_count;
    uint32_t epoch_lanes;  // of any launch on this communicator, at most; the same for all of them
    int32_t rank, ranks;
  };

  // `in` may be `out` exactly for all_reduce, and must not overlap it otherwise.
  struct Buffers {
    const char* in;
    char* out;
    char* scratch;  // own device memory, 16-byte aligned: [lanes][scratch_chunks][ScratchBytes()]
    uint64_t in_region, in_offset, out_region, out_offset;  // `in` and `out` as members name them
  };

  // How the buffers are cut.
  struct Shape {
    uint64_t block_elements;
    uint64_t tiles;           // of the longest piece (Plan::Tiles); ignored if `extents` are given
    uint64_t tile_elements;   // a multiple of slice_elements
    uint64_t slice_elements;  // of one message at most; a multiple of 512 / element_bytes. slots >= 2 * tile / slice
    uint32_t lanes, pieces, scratch_chunks;
    uint32_t in_blocks, out_blocks;
  };

  // What the collective does.
  struct Call {
    uint64_t divisor;  // of a final step; 0: none
    // Of the call site, the same on all ranks. Ranks whose launches meet compare it: they may have begun the calls of a
    // communicator in different orders.
    uint32_t number;
    int32_t root;
    Protocol protocol;
    DType dtype;
    ReduceOp op;
    bool reduces;  // false: the schedule only moves data, and only the size of dtype's elements counts
  };

  // When a launch fails, and what it does then.
  struct Failure {
    uint64_t timeout_ns;
    const uint32_t* abort;  // own memory, pinned: nonzero ends every wait
    Status* status;
    // If set, a launch that fails traps when all its lanes have ended: see LeaveLaunch.
    bool trap;
    // If set, a fault is recorded in *abort as well (which must then be writable), so that this process's other
    // launches end at once instead of by their own deadlines.
    bool spread_faults;
  };

  Table table;
  Group group;
  Extents extents;  // all nullptr unless ragged
  Buffers buffers;
  Shape shape;
  Call call;
  Failure failure;
  LaunchState* state;  // given if `failure.trap` is set, or there is something to copy
  // Slices of at least that many bytes that are not reduced go by bulk copies (bulk.h); 0: no bulk copies. Needs
  // compute capability 9.0 and BulkBytes() of dynamic shared memory; kernels compiled for lower capabilities ignore it.
  uint64_t bulk_bytes;
  Staging staging;
};

// What the steps with StepFlag::kEpilogue of a launch apply to complete values: functions, one after another. Passed by
// value, too. The arrays are own memory, which earlier work of the same stream may write.
struct EpilogueArgs {
  static constexpr uint32_t kMostFunctions = 16, kMostFurther = 8;
  struct Function {
    uint32_t number;              // in ffi/reduce/functions.h
    uint32_t parameter, further;  // its first ones
    uint32_t arrays;              // how many operands and states it has
  };
  // An operand or a state, with an element for each element of the output. `to`: where the new state goes, which may be
  // `from`; nullptr for an operand.
  struct Further {
    const char* from;
    char* to;
    DType dtype;
  };
  const char* parameters;  // of all functions: floats, or doubles if the data are
  uint32_t functions;
  DType result;  // of the output's elements
  Function function[kMostFunctions];
  Further further[kMostFurther];
};

// The binary logarithms of what `bytes` says of each dtype, three bits each, the first dtype in the lowest bits: device
// code looks them up in a constant, not in memory.
template <class Bytes>
constexpr uint64_t PackedLogarithms(Bytes bytes) {
  static_assert(3 * kDTypeCount <= 64, "the logarithms of all dtypes have to fit one constant");
  uint64_t packed = 0;
  for (int i = kDTypeCount - 1; i >= 0; --i) {
    uint64_t logarithm = 0;
    while (1u << logarithm < bytes(kDTypes[i])) ++logarithm;
    packed = packed << 3 | logarithm;
  }
  return packed;
}
inline constexpr uint64_t kLogBytes = PackedLogarithms([](const DTypeFacts& facts) { return uint32_t{facts.bytes}; });
inline constexpr uint64_t kLogWidening =
    PackedLogarithms([](const DTypeFacts& facts) { return uint32_t{facts.accumulator_bytes} / uint32_t{facts.bytes}; });

constexpr uint32_t BytesOf(DType dtype) { return 1u << (kLogBytes >> 3 * static_cast<int>(dtype) & 7); }

// Accumulator elements take this many times the bytes of the dtype's own.
constexpr uint32_t Widening(DType dtype, bool reduces) {
  return reduces ? 1u << (kLogWidening >> 3 * static_cast<int>(dtype) & 7) : 1;
}

// Data moves in packs: 16 bytes of elements as they are in memory, and `widening` times that as accumulators.
inline constexpr uint32_t kPackBytes = 16;
inline constexpr uint32_t kRowPacks = 15;  // of LL128: the data of two lines

// Bytes that a message of `elements` takes in its slot; `widening` 1 for raw elements, Widening() for accumulators.
constexpr uint64_t MessageBytes(Protocol protocol, uint64_t elements, uint64_t element_bytes, uint32_t widening) {
  const uint64_t packs = (elements * element_bytes + kPackBytes - 1) / kPackBytes;
  const uint64_t warps = (packs + kWarp - 1) / kWarp;
  switch (protocol) {
    case Protocol::kSimple:
      return warps * kWarp * kPackBytes * widening;
    case Protocol::kLL:
      return warps * kWarp * kPackBytes * widening * 2;
    case Protocol::kLL128:
      return (packs + kRowPacks - 1) / kRowPacks * 256 * widening;
  }
  return 0;
}

// The least Args::Group::slot_bytes for messages of slice_elements.
constexpr uint64_t SlotBytes(Protocol protocol, uint64_t slice_elements, uint64_t element_bytes, uint32_t widening) {
  return (MessageBytes(protocol, slice_elements, element_bytes, widening) + 127) / 128 * 128;
}

// Bytes of one scratch chunk: a tile of accumulators.
constexpr uint64_t ScratchBytes(uint64_t tile_elements, uint64_t element_bytes, uint32_t widening) {
  return MessageBytes(Protocol::kSimple, tile_elements, element_bytes, widening);
}

}  // namespace jaxring::cuda
