// All-reduce, reduce-scatter and all-gather through multicast memory, slice by slice: see multicast_launch.h.
//
// A lane has its own part of the memory, in two halves that slices use in turn. Once per slice it waits at a barrier
// for the lanes of its number on the other ranks. All-reduce: a rank copies its input into its own replica. After the
// barrier, each rank makes the switch reduce its share of the slice and store it to all replicas. After the next
// barrier it copies its own replica to its output, while the next slice is filled. When a lane has passed the barrier
// of slice k, all others have reduced and stored k and copied k - 1 to the output, so the half of k - 1 is free for k
// + 1.
//
// One rank reduces each element, once, and stores the value to all, so all ranks have the same bits.
//
// Elements may have another form in the memory (SwitchForm). They are converted when they are copied in from the user's
// buffer and when they are copied out. The vectors of widened packs are laid out as in scratch (VectorOffset).
#pragma once

#include "cuda/device/epoch_barrier.h"
#include "cuda/device/packs.h"
#include "cuda/experimental/keys.h"
#include "cuda/experimental/multicast_launch.h"
#include "cuda/experimental/multimem.h"

namespace jaxring::cuda {

class MulticastPlayer {
 public:
  JAXRING_DEVICE MulticastPlayer(const Multicast& memory, const Args& args, Shared& shared)
      : memory_(memory),
        args_(args),
        lane_(args, shared),
        how_{args.call.dtype, CodeOf(args.call.dtype, args.call.op), args.call.divisor},
        form_(SwitchFormOf(args)),
        switch_(ArithmeticOf(how_, form_)),
        block_(args.shape.block_elements * BytesOf(args.call.dtype)),
        slice_(MulticastSlice(memory.kind, memory.bytes, args.shape.lanes, args.group.ranks, form_.widen)) {
    const uint64_t runs = (block_ + kRun - 1) / kRun;
    begin_ = Least(block_, runs * lane_.number / args.shape.lanes * kRun);
    bytes_ = Least(block_, runs * (lane_.number + 1) / args.shape.lanes * kRun) - begin_;
    const uint64_t blocks = memory.kind == MulticastKind::kAllReduce ? 1 : args.group.ranks;
    half_ = blocks * slice_ * form_.widen;
    part_ = 2 * lane_.number * half_;
  }

  JAXRING_DEVICE bool Play() {
    const bool gathers = memory_.kind == MulticastKind::kAllGather;
    const uint64_t slices = (bytes_ + slice_ - 1) / slice_;
    // Only this rank accesses its replica now: the other ranks' earlier launches have ended, and this one's wait for
    // it.
    if (!gathers && slices != 0) Fill(0);
    Publish();
    bool good = EnterBarrier(lane_);
    for (uint64_t k = 0; good && k < slices; ++k) {
      if (gathers) {
        Put(k);
        if (k != 0) Drain(k - 1);
      } else {
        Reduce(k);
        if (k + 1 != slices) Fill(k + 1);
      }
      if (k + 1 == slices) break;
      good = Meet();
      if (good && memory_.kind == MulticastKind::kAllReduce) Drain(k);
    }
    Publish();
    good = LeaveBarrier(lane_, !good);
    if (good && slices != 0 && memory_.kind != MulticastKind::kReduceScatter) Drain(slices - 1);
    return good;
  }

 private:
  static constexpr uint64_t kRun = kWarp * kPackBytes;
  static constexpr int kAtOnce = 4;
  enum class Memory { kUser, kOwn, kAll };

  JAXRING_DEVICE static uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }
  JAXRING_DEVICE uint64_t BytesOfSlice(uint64_t k) const { return Least(slice_, bytes_ - k * slice_); }
  // Block `b` of slice `k` in the memory.
  JAXRING_DEVICE uint64_t At(uint64_t k, uint64_t b) const { return part_ + k % 2 * half_ + b * slice_ * form_.widen; }
  JAXRING_DEVICE uint64_t InBlock(uint64_t k, uint64_t b) const { return b * block_ + begin_ + k * slice_; }

  // To be called before a release: orders the block's accesses by one address before others' accesses by the other.
  JAXRING_DEVICE void Publish() const {
    SyncBlock();
    if (ThreadIndex() < args_.group.member_count) FenceAliases();
  }

  // Waits until all members have come as far. It counts as an epoch, and all ranks have equally many. No rank accesses
  // another's buffers, so a failed member need not be distinguished from one that has not come: see epoch_barrier.h.
  JAXRING_DEVICE bool Meet() {
    Publish();
    ++lane_.epoch;
    for (uint32_t m = ThreadIndex(); m < args_.group.member_count; m += Threads()) {
      StoreRelease(&Theirs(lane_, m).met, lane_.epoch);
    }
    bool failed = false;
    for (uint32_t m = ThreadIndex(); m < args_.group.member_count; m += Threads()) {
      if (!AwaitMet(Ours(lane_, m), args_.group.members[m].rank)) failed = true;
    }
    return !SyncBlockOr(failed);
  }

  JAXRING_DEVICE bool AwaitMet(const EpochBarrier& barrier, int32_t rank) const {
    for (uint32_t turn = 1; LoadAcquire(&barrier.met) < lane_.epoch; ++turn) {
      if (turn % kPatience == 0) {
        if (MemberFailed(lane_, barrier, Wait::kBegin, rank)) return false;
        if (GivesUp(lane_, Wait::kBegin, rank, lane_.epoch)) return false;
      }
      Pause(turn);
    }
    return !MemberFailed(lane_, barrier, Wait::kBegin, rank);
  }

  JAXRING_DEVICE void Fill(uint64_t k) {
    const uint32_t blocks = memory_.kind == MulticastKind::kAllReduce ? 1 : args_.group.ranks;
    for (uint32_t b = 0; b < blocks; ++b) {
      Convert<Memory::kUser, Memory::kOwn>(args_.buffers.in + InBlock(k, b), memory_.own + At(k, b), BytesOfSlice(k));
    }
  }
  JAXRING_DEVICE void Put(uint64_t k) {
    Move<Memory::kUser, Memory::kAll, 1>(args_.buffers.in + InBlock(k, 0), memory_.all + At(k, args_.group.rank),
                                         BytesOfSlice(k));
  }
  JAXRING_DEVICE void Reduce(uint64_t k) {
    if (memory_.kind == MulticastKind::kReduceScatter) {
      Convert<Memory::kAll, Memory::kUser>(memory_.all + At(k, args_.group.rank), args_.buffers.out + InBlock(k, 0),
                                           BytesOfSlice(k));
      return;
    }
    // The bytes after the slice's end in the last pack are unused, and are reduced, too.
    const uint64_t runs = (BytesOfSlice(k) + kRun - 1) / kRun * form_.widen;
    const uint64_t begin = runs * args_.group.rank / args_.group.ranks * kRun,
                   end = runs * (args_.group.rank + 1) / args_.group.ranks * kRun;
    char* all = memory_.all + At(k, 0) + begin;
    Move<Memory::kAll, Memory::kAll, 1>(all, all, end - begin);
  }
  JAXRING_DEVICE void Drain(uint64_t k) {
    const uint32_t blocks = memory_.kind == MulticastKind::kAllReduce ? 1 : args_.group.ranks;
    for (uint32_t b = 0; b < blocks; ++b) {
      Convert<Memory::kOwn, Memory::kUser>(memory_.own + At(k, b), args_.buffers.out + InBlock(k, b), BytesOfSlice(k));
    }
    SyncBlock();  // another thread may write the memory that this one has read
  }

  template <Memory kFrom, Memory kTo>
  JAXRING_DEVICE void Convert(const char* from, char* to, uint64_t bytes) {
    if (form_.widen == 1) return Move<kFrom, kTo, 1>(from, to, bytes);
    Move<kFrom, kTo, 2>(from, to, bytes);
  }

  // `bytes`: of the user's side, where there is one.
  template <Memory kFrom, Memory kTo, int kWiden>
  JAXRING_DEVICE void Move(const char* from, char* to, uint64_t bytes) {
    const uint64_t user = kFrom == Memory::kUser ? reinterpret_cast<uint64_t>(from)
                          : kTo == Memory::kUser ? reinterpret_cast<uint64_t>(to)
                                                 : 0;
    const uint64_t parts = user | bytes;
    const uint32_t log2 = parts & 1 ? 0 : parts & 2 ? 1 : 2;
    const auto packs = static_cast<uint32_t>((bytes + kPackBytes - 1) / kPackBytes);
    const auto whole = user % kPackBytes == 0 ? static_cast<uint32_t>(bytes / kPackBytes) : 0;
    Packs<kFrom, kTo, kWiden, kAtOnce / kWiden, false>(from, to, bytes, 0, whole, log2);
    if (whole != packs) Packs<kFrom, kTo, kWiden, 1, true>(from, to, bytes, whole, packs, log2);
  }

  // The offset of vector `i` of a pack on that side.
  template <Memory kMemory, int kWiden>
  JAXRING_DEVICE static uint64_t Offset(uint32_t pack, int i) {
    return kMemory == Memory::kUser ? pack * uint64_t{kPackBytes} : VectorOffset<kWiden>(pack, i);
  }

  template <Memory kFrom, Memory kTo, int kWiden, int kPacks, bool kEdge>
  JAXRING_DEVICE void Packs(const char* from, char* to, uint64_t bytes, uint32_t begin, uint32_t end, uint32_t log2) {
    using Map = RunsOfPacks<kPacks>;
    for (uint32_t at = begin + WarpIndex() * Map::kPerWarp; at < end; at += Warps() * Map::kPerWarp) {
      Vec v[kPacks][kWiden] = {};
      if constexpr (kFrom == Memory::kAll) {
        Reduced<kWiden>(from, at, end, v);
      } else {
        JAXRING_UNROLL
        for (int u = 0; u < kPacks; ++u) {
          const uint32_t pack = Map::Pack(at, u);
          if (pack >= end) continue;
          JAXRING_UNROLL
          for (int i = 0; i < (kFrom == Memory::kUser ? 1 : kWiden); ++i) {
            const char* source = from + Offset<kFrom, kWiden>(pack, i);
            if constexpr (kFrom == Memory::kOwn) {
              v[u][i] = LoadBound(source);
            } else if constexpr (kEdge) {
              v[u][i] = LoadEdge(source, BytesOfPack(bytes, pack), log2);
            } else {
              v[u][i] = Load(source);
            }
          }
        }
      }
      JAXRING_UNROLL
      for (int u = 0; u < kPacks; ++u) {
        const uint32_t pack = Map::Pack(at, u);
        if (pack >= end) continue;
        if constexpr (kFrom == Memory::kUser && kTo == Memory::kOwn) Enter(v[u]);
        if constexpr (kTo == Memory::kUser) Leave(v[u]);
        JAXRING_UNROLL
        for (int i = 0; i < (kTo == Memory::kUser ? 1 : kWiden); ++i) {
          char* target = to + Offset<kTo, kWiden>(pack, i);
          if constexpr (kTo == Memory::kAll) {
            StoreAll(target, v[u][i]);
          } else if constexpr (kTo == Memory::kOwn) {
            StoreBound(target, v[u][i]);
          } else if constexpr (kEdge) {
            StoreEdge(target, v[u][i], BytesOfPack(bytes, pack), log2, false);
          } else {
            Store(target, v[u][i]);
          }
        }
      }
    }
  }

  template <int kWiden, int kPacks>
  JAXRING_DEVICE void Reduced(const char* from, uint32_t at, uint32_t end, Vec (&to)[kPacks][kWiden]) const {
    const char* source[kPacks * kWiden];
    Vec v[kPacks * kWiden] = {};
    JAXRING_UNROLL
    for (int i = 0; i < kPacks * kWiden; ++i) {
      const uint32_t pack = RunsOfPacks<kPacks>::Pack(at, i / kWiden);
      source[i] = pack < end ? from + VectorOffset<kWiden>(pack, i % kWiden) : nullptr;
    }
    LoadReduced(switch_, source, v);
    if (args_.call.divisor != 0) Divide<1>(switch_, v);
    JAXRING_UNROLL
    for (int i = 0; i < kPacks * kWiden; ++i) to[i / kWiden][i % kWiden] = v[i];
  }

  // Converts from the user's form, in the first vector, to the memory's, and back.
  template <int kWiden>
  JAXRING_DEVICE void Enter(Vec (&v)[kWiden]) const {
    const Vec raw = v[0];
    Widen<kWiden>(how_, raw, v);
    if (form_.keys) ToKeys(how_, v);
  }
  template <int kWiden>
  JAXRING_DEVICE void Leave(Vec (&v)[kWiden]) const {
    if (form_.keys) FromKeys(how_, v);
    v[0] = Narrow<kWiden>(how_, v);
  }

  JAXRING_DEVICE static uint32_t BytesOfPack(uint64_t bytes, uint32_t pack) {
    return static_cast<uint32_t>(Least(bytes - pack * uint64_t{kPackBytes}, kPackBytes));
  }

  const Multicast& memory_;
  const Args& args_;
  Lane lane_;
  Arithmetic how_;
  SwitchForm form_;
  Arithmetic switch_;  // the operation of the switch
  uint64_t block_, slice_;
  uint64_t begin_, bytes_;  // this lane's share of a block
  uint64_t part_, half_;    // where its part of the memory begins; bytes of a half
};

// Tests one way of reaching all replicas. Called by one thread.
JAXRING_DEVICE void Try(const Multicast& memory, const Args& args) {
  if (ThreadIndex() != 0) return;
  FenceAliases();
  if (memory.kind == MulticastKind::kTryStore) {
    StoreAll(memory.all + MulticastProbe::Stored(args.group.rank),
             LoadBound(memory.own + MulticastProbe::Own(args.group.ranks)));
  } else {
    const char* from[] = {memory.all + MulticastProbe::Part(args.group.ranks)};
    Vec sum[1] = {};
    LoadReduced({DType::kUInt32, CodeOf(DType::kUInt32, ReduceOp::kSum), 0}, from, sum);
    StoreBound(memory.own + MulticastProbe::Sum(args.group.ranks), sum[0]);
  }
  FenceAliases();
}

JAXRING_DEVICE void PlayMulticast(const Multicast& memory, const Args& args, Shared& shared) {
  if (memory.kind >= MulticastKind::kTryStore) return Try(memory, args);
  LeaveLaunch(args, MulticastPlayer(memory, args, shared).Play());
}

}  // namespace jaxring::cuda
