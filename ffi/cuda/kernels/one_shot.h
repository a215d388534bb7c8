// The one-shot all-reduce: every rank writes its input as LL lines into a stage of every other rank, and folds what all
// have written in rank order. No barrier is passed.
//
// A stage has two halves, which are used in turn. A rank that writes half k % 2 in launch k has ended launch k - 1, so
// it has received what all others sent in that launch. The others had therefore ended launch k - 2 and read that half.
// So k must be the same for all lanes, however many lanes a launch has, and a launch without data has no number.
#pragma once

#include "cuda/device/ll.h"
#include "cuda/device/pass.h"
#include "cuda/kernels/kernel_launch.h"
#include "cuda/kernels/share.h"

namespace jaxring::cuda {

// One lane of a launch.
struct OneShot {
  const Args& args;
  Lane lane;
  uint64_t bytes;   // of the vector
  uint64_t number;  // of the launch: that of its messages
  uint64_t half;    // where its half of a stage begins
  Share mine;

  JAXRING_DEVICE OneShot(const Args& args, Shared& shared)
      : args(args),
        lane(args, shared),
        bytes(args.shape.block_elements * cuda::BytesOf(args.call.dtype)),
        number(args.group.epochs[2 * lane.number + 1]),
        half(number % 2 * args.group.stage_bytes),
        mine(ShareOf({0, bytes}, lane.number, args.shape.lanes)) {}

  // Where this lane's lines are in a stage. They take twice the bytes of their data.
  JAXRING_DEVICE uint64_t Lines() const { return half + 2 * mine.begin; }

  JAXRING_DEVICE uint32_t Flag() const { return LL::FlagOf(number, args.call.number); }

  // As LL::Clean for slots: no flag in a stage may be older than 2^15 launches. The lines that the launch uses have the
  // new flag already, or get it from their own lane.
  JAXRING_DEVICE void CleanStages() const {
    if ((number & 0x7fffu) >= 2) return;
    const uint32_t packs = static_cast<uint32_t>((bytes + kPackBytes - 1) / kPackBytes);
    const uint32_t thread = lane.number * Threads() + ThreadIndex();
    for (uint32_t m = 0; m < args.group.member_count; ++m) {
      LL::WriteRest(args.group.members[m].stage_theirs + half, args.group.stage_bytes, packs, 2, Flag(), thread,
                    args.shape.lanes * Threads());
    }
  }

  // Called by all threads at the end. The barrier is also what keeps the number until all have read it.
  JAXRING_DEVICE void Finish(bool lost) const {
    lost = SyncBlockOr(lost);
    if (!lost && ThreadIndex() == 0) {
      // Also the counters of lanes that this launch does not have.
      for (uint32_t other = lane.number; other < args.group.epoch_lanes; other += args.shape.lanes) {
        args.group.epochs[2 * other + 1] = number + 1;
      }
    }
    LeaveLaunch(args, !lost);
  }
};

// The sum, or mean, of a dtype among so many ranks. A thread has one pack at a time: it pushes it to all, and later
// loads the lines of all peers, so many at once, and from then on those that had not come. It pushes all its packs
// before it waits for any. No thread touches another's packs, so none waits for another.
template <DType kType, int kRanks>
class OneShotSum {
 public:
  JAXRING_DEVICE OneShotSum(const Args& args, Shared& shared)
      : launch_(args, shared),
        in_(args.buffers.in + launch_.mine.begin),
        out_(args.buffers.out + launch_.mine.begin),
        bytes_(launch_.mine.end - launch_.mine.begin),
        packs_(static_cast<uint32_t>((bytes_ + kPackBytes - 1) / kPackBytes)) {}

  JAXRING_DEVICE void Play() {
    if (launch_.bytes == 0) return;
    for (uint32_t pack = ThreadIndex(); pack < packs_; pack += Threads()) Push(pack);
    launch_.CleanStages();
    bool lost = false;
    for (uint32_t pack = ThreadIndex(); pack < packs_ && !lost; pack += Threads()) lost = !Sum(pack);
    launch_.Finish(lost);
  }

 private:
  static constexpr int kPeers = kRanks - 1;
  static constexpr int kWiden = static_cast<int>(Widening(kType, true));
  // Addresses and lengths are multiples of an element.
  static constexpr uint32_t kLogElement = kLogBytes >> 3 * static_cast<int>(kType) & 7;

  // Whether a pack's bytes in `buffer` can be accessed as one vector.
  JAXRING_DEVICE bool Whole(const char* buffer, uint32_t pack) const {
    const bool aligned = reinterpret_cast<uint64_t>(buffer) % kPackBytes == 0;
    return aligned && (uint64_t{pack} + 1) * kPackBytes <= bytes_;
  }
  JAXRING_DEVICE uint32_t Used(uint32_t pack) const {
    const uint64_t rest = bytes_ - uint64_t{pack} * kPackBytes;
    return rest < kPackBytes ? static_cast<uint32_t>(rest) : kPackBytes;
  }
  JAXRING_DEVICE Vec Own(uint32_t pack) const {
    const char* at = in_ + uint64_t{pack} * kPackBytes;
    return Whole(in_, pack) ? Load(at) : LoadEdge(at, Used(pack), kLogElement);
  }

  JAXRING_DEVICE void Push(uint32_t pack) const {
    const Vec own = Own(pack);
    const uint32_t flag = launch_.Flag();
    JAXRING_UNROLL
    for (int i = 0; i < kPeers; ++i) {  // each rank begins with another peer
      const uint32_t peer = (i + static_cast<uint32_t>(launch_.args.group.rank)) % kPeers;
      char* lines = launch_.args.group.members[peer].stage_theirs + launch_.Lines();
      StoreLine(lines + VectorOffset<2>(pack, 0), LL::Line(own, 0, flag));
      StoreLine(lines + VectorOffset<2>(pack, 1), LL::Line(own, 1, flag));
    }
  }

  JAXRING_DEVICE void Read(int peer, uint32_t pack, Vec (&lines)[2 * kPeers]) const {
    const char* from = launch_.args.group.members[peer].stage_ours + launch_.Lines();
    lines[2 * peer] = LoadLine(from + VectorOffset<2>(pack, 0));
    lines[2 * peer + 1] = LoadLine(from + VectorOffset<2>(pack, 1));
  }
  JAXRING_DEVICE static bool Came(int peer, const Vec (&lines)[2 * kPeers], uint32_t flag) {
    const Vec &low = lines[2 * peer], &high = lines[2 * peer + 1];
    return low.w[1] == flag && low.w[3] == flag && high.w[1] == flag && high.w[3] == flag;
  }
  JAXRING_DEVICE static Vec Data(int peer, const Vec (&lines)[2 * kPeers]) {
    const Vec &low = lines[2 * peer], &high = lines[2 * peer + 1];
    return {{low.w[0], low.w[2], high.w[0], high.w[2]}};
  }

  // Returns false if it gave up.
  JAXRING_DEVICE bool Sum(uint32_t pack) const {
    const uint32_t flag = launch_.Flag();
    const Vec own = Own(pack);
    Vec lines[2 * kPeers];
    JAXRING_UNROLL
    for (int peer = 0; peer < kPeers; ++peer) Read(peer, pack, lines);
    for (uint32_t turn = 1;; ++turn) {
      int missing = -1;
      uint32_t seen = 0;
      JAXRING_UNROLL
      for (int peer = 0; peer < kPeers; ++peer) {
        if (Came(peer, lines, flag)) continue;
        missing = peer;
        seen = lines[2 * peer].w[1];
        Read(peer, pack, lines);
      }
      if (missing < 0) break;
      if (turn % kPatience == 0) {
        const int32_t rank = launch_.args.group.members[missing].rank;
        if (GivesUp(launch_.lane, Wait::kMessage, rank, launch_.number, LL::OfOtherCall(seen, flag), seen >> 16)) {
          return false;
        }
      }
      Pause(turn);
    }
    const Arithmetic how{kType, Code::kSumF32, launch_.args.call.divisor};
    Vec value[kWiden], next[kWiden];
    JAXRING_UNROLL
    for (int rank = 0; rank < kRanks; ++rank) {
      // The members are the other ranks in order.
      Vec raw = own;
      if (rank < kPeers && rank < launch_.args.group.rank) raw = Data(rank < kPeers ? rank : 0, lines);
      if (rank > launch_.args.group.rank) raw = Data(rank > 0 ? rank - 1 : 0, lines);
      Widen<kWiden>(how, raw, rank == 0 ? value : next);
      if (rank != 0) Elementwise<float, cuda::Sum>::Fold(value, next);
    }
    if (how.divisor != 0) Divide<kWiden>(how, value);
    const Vec result = Narrow<kWiden>(how, value);
    char* to = out_ + uint64_t{pack} * kPackBytes;
    if (Whole(out_, pack)) {
      Store(to, result);
    } else {
      StoreEdge(to, result, Used(pack), kLogElement, false);
    }
    return true;
  }

  OneShot launch_;
  const char* in_;
  char* out_;
  uint64_t bytes_;
  uint32_t packs_;
};

// Any operation of any dtype among any number of ranks.
template <int kWiden>
JAXRING_DEVICE void PlayAnyOneShot(const Args& args, Shared& shared) {
  const OneShot launch(args, shared);
  if (launch.bytes == 0) return;
  const Share mine = launch.mine;
  Operand* sources = shared.sources;
  Operand* targets = shared.targets;
  for (uint32_t m = ThreadIndex(); m < args.group.member_count; m += Threads()) {
    const Member& member = args.group.members[m];
    targets[m] = {member.stage_theirs + launch.Lines(), launch.number, Form::kMessage, 0, member.rank};
    sources[m + (m >= static_cast<uint32_t>(args.group.rank))] = {const_cast<char*>(member.stage_ours) + launch.Lines(),
                                                                  launch.number, Form::kMessage, 0, member.rank};
  }
  if (ThreadIndex() == 0) {
    sources[args.group.rank] = {const_cast<char*>(args.buffers.in) + mine.begin, 0, Form::kRaw, 0, -1};
    targets[args.group.member_count] = {args.buffers.out + mine.begin, 0, Form::kRaw, 0, -1};
  }
  SyncBlock();
  Work send{};
  send.bytes = mine.end - mine.begin;
  send.packs = static_cast<uint32_t>((send.bytes + kPackBytes - 1) / kPackBytes);
  uint64_t addresses = reinterpret_cast<uint64_t>(args.buffers.in + mine.begin) |
                       reinterpret_cast<uint64_t>(args.buffers.out + mine.begin);
  send.aligned = addresses % kPackBytes == 0;
  addresses |= send.bytes;
  send.log2 = addresses & 1 ? 0 : addresses & 2 ? 1 : 2;
  Work fold = send;
  send.source = sources + args.group.rank;
  send.sources = 1;
  send.target = targets;
  send.targets = args.group.member_count;
  send.moves = true;
  const Arithmetic how{args.call.dtype, CodeOf(args.call.dtype, args.call.op), args.call.divisor};
  Pass<ElementLines, 0>(launch.lane, how, send);
  launch.CleanStages();
  // If the operation is in place, another thread may still have to send what this one overwrites.
  SyncBlock();
  fold.source = sources;
  fold.sources = args.group.ranks;
  fold.target = targets + args.group.member_count;
  fold.targets = 1;
  fold.divide = args.call.divisor != 0;
  fold.moves = args.group.ranks == 1 && !fold.divide;
  launch.Finish(!Pass<ElementLines, kWiden>(launch.lane, how, fold));
}

template <class Result, int kRanks, class Use>
constexpr Result OneShotAmong(DType dtype, const Use& use) {
  if (dtype == DType::kF32) return use.template Sum<DType::kF32, kRanks>();
  if (dtype == DType::kBF16) return use.template Sum<DType::kBF16, kRanks>();
  return use.template Sum<DType::kF16, kRanks>();
}
// Calls `use` for the kernel that serves such a launch: OneShotSum, or PlayAnyOneShot of that width.
template <class Result, class Use>
constexpr Result OneShotOf(const Args& args, const Use& use) {
  const bool dtype =
      args.call.dtype == DType::kF32 || args.call.dtype == DType::kBF16 || args.call.dtype == DType::kF16;
  if (args.call.op == ReduceOp::kSum && dtype) {
    if (args.group.ranks == 2) return OneShotAmong<Result, 2>(args.call.dtype, use);
    if (args.group.ranks == 4) return OneShotAmong<Result, 4>(args.call.dtype, use);
    if (args.group.ranks == 8) return OneShotAmong<Result, 8>(args.call.dtype, use);
  }
  const uint32_t width = Widening(args.call.dtype, true);
  if (width == 1) return use.template Any<1>();
  return width == 2 ? use.template Any<2>() : use.template Any<4>();
}

}  // namespace jaxring::cuda
