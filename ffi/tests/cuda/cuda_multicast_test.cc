// Collectives through multicast memory on the shim. Results are those of a fold in the order of the replicas, with
// memory of several slices, and with launches of different kinds and lanes that share it. Waits end in time, and
// without one of the fences and waits that order the accesses the results are wrong.
#include <array>
#include <cfloat>
#include <cmath>
#include <functional>
#include <iterator>
#include <memory>
#include <string>

#include "cuda/experimental/multimem_host.h"
#include "tests/cuda/cuda_launch.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

using cuda::MulticastKind;
using cuda::simt::Faults;

constexpr uint32_t kThreads = 64, kLanes = 5;

// Ranks of one domain, whose memory is bound to one multicast object.
class Team {
 public:
  Team(int ranks, uint64_t bytes) : bytes_(bytes), cluster(Shape(ranks)) {
    std::vector<char*> bases;
    for (int r = 0; r < ranks; ++r) {
      replicas_.push_back(std::make_unique<Memory>(bytes));
      bases.push_back(replicas_.back()->data());
    }
    all_ = cuda::simt::NewMulticast(std::move(bases), bytes);
  }
  ~Team() { cuda::simt::FreeMulticast(all_); }
  cuda::Multicast At(int rank, MulticastKind kind) const { return {replicas_[rank]->data(), all_, bytes_, kind}; }

 private:
  static ClusterShape Shape(int ranks) {
    return {ranks, kLanes, std::vector<int32_t>(ranks, 0), cuda::Protocol::kSimple, 4, 128, 0};
  }
  uint64_t bytes_;
  std::vector<std::unique_ptr<Memory>> replicas_;
  char* all_;

 public:
  Cluster cluster;
};

struct What {
  MulticastKind kind = MulticastKind::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  bool mean = false;
  uint64_t block = 0;
  uint32_t lanes = 1;
  bool in_place = false;
  uint64_t skew = 0;  // the buffers begin this many elements after a multiple of 16 bytes
  bool special = false;
};

// Elements at the edges of the dtype's range, with both signs, and NaN.
Buffer SpecialInput(DType dtype, uint64_t elements, int rank, uint64_t seed) {
  const bool half = dtype == DType::kF16;
  const double most = half ? 65504 : dtype == DType::kF64 ? DBL_MAX : 0x1.fep127;
  const double least = half ? 0x1p-24 : dtype == DType::kF64 ? 0x1p-1074 : 0x1p-133;
  const double values[] = {0, 0, 1, most, most / 3, least, 5 * least, HUGE_VAL, NAN};
  const size_t bytes = ElementBytes(dtype);
  Buffer buffer(elements * bytes);
  for (uint64_t i = 0; i < elements; ++i) {
    const uint64_t random = Random(i ^ static_cast<uint64_t>(rank) << 40 ^ seed << 50) >> 20;
    char* element = buffer.data() + i * bytes;
    Write(dtype, element, {values[random / 2 % std::size(values)]});
    if (random % 2 != 0) element[bytes - 1] = static_cast<char>(element[bytes - 1] ^ 0x80);
  }
  return buffer;
}

// One collective's buffers on all ranks, and the expected results.
class Round {
 public:
  Round(Team& team, int ranks, const What& what, uint64_t seed)
      : team_(team), what_(what), ranks_(ranks), element_(ElementBytes(what.dtype)) {
    Settings settings;
    settings.dtype = what.dtype;
    settings.block = what.block;
    const int in_blocks = what.kind == MulticastKind::kReduceScatter ? ranks : 1;
    const int out_blocks = what.kind == MulticastKind::kAllGather ? ranks : 1;
    const size_t skew = what.skew * element_;
    for (int r = 0; r < ranks; ++r) {
      values_.push_back(what.special ? SpecialInput(what.dtype, what.block * in_blocks, r, seed)
                                     : Input(settings, in_blocks, r, seed));
      inputs_.emplace_back(skew + values_[r].size());
      if (values_[r].size() != 0) std::memcpy(inputs_[r].data() + skew, values_[r].data(), values_[r].size());
      outputs_.emplace_back(skew + what.block * element_ * out_blocks);
    }
  }

  cuda::simt::Kernel Launch(int rank, uint64_t timeout_ns, std::function<void()> done = {}) {
    const size_t skew = what_.skew * element_;
    char* in = inputs_[rank].data() + skew;
    cuda::Args args = team_.cluster.Common(rank, in, what_.in_place ? in : outputs_[rank].data() + skew, true);
    args.shape.block_elements = what_.block;
    args.call.divisor = what_.mean ? ranks_ : 0;
    args.shape.lanes = what_.lanes;
    args.call.dtype = what_.dtype;
    args.call.op = what_.op;
    args.call.reduces = what_.kind != MulticastKind::kAllGather;
    args.failure.timeout_ns = timeout_ns;
    auto shared = std::make_shared<std::vector<cuda::Shared>>(what_.lanes);
    auto body = [memory = team_.At(rank, what_.kind), args, shared] {
      cuda::shim::PlayMulticast(memory, args, (*shared)[cuda::BlockIndex()]);
    };
    return {what_.lanes, kThreads, body, std::move(done)};
  }

  bool Right(int rank) const {
    const Buffer& output = what_.in_place ? inputs_[rank] : outputs_[rank];
    output.CheckGuards();
    const char* got = output.data() + what_.skew * element_;
    const uint64_t blocks = what_.kind == MulticastKind::kAllGather ? ranks_ : 1;
    for (uint64_t i = 0; i < blocks * what_.block; ++i) {
      std::array<char, 16> want;
      Expect(rank, i, want.data());
      if (!SameElement(what_.dtype, got + i * element_, want.data())) return false;
    }
    return true;
  }

 private:
  void Expect(int rank, uint64_t i, char* to) const {
    if (what_.kind == MulticastKind::kAllGather) {
      std::memcpy(to, values_[i / what_.block].data() + i % what_.block * element_, element_);
      return;
    }
    const uint64_t at = ((what_.kind == MulticastKind::kReduceScatter ? rank * what_.block : 0) + i) * element_;
    Value sum = Read(what_.dtype, values_[0].data() + at);
    for (int r = 1; r < ranks_; ++r)
      sum = Combine(what_.dtype, what_.op, sum, Read(what_.dtype, values_[r].data() + at));
    Write(what_.dtype, to, Divide(what_.dtype, sum, what_.mean ? ranks_ : 0));
  }

  Team& team_;
  What what_;
  int ranks_;
  size_t element_;
  std::vector<Buffer> values_, inputs_, outputs_;
};

enum class Outcome { kRight, kWrong, kStuck };

// Runs the rounds one after another with the same multicast memory. Each rank's result is checked as soon as its launch
// has ended.
Outcome Play(int ranks, uint64_t bytes, const std::vector<What>& rounds, uint64_t seed,
             const std::function<Faults(Cluster&)>& broken = {}) {
  static cuda::simt::Machine machine;
  Team team(ranks, bytes);
  std::vector<std::unique_ptr<Round>> played;
  std::vector<cuda::simt::Stream> streams(ranks);
  bool right = true;
  for (const What& what : rounds) {
    played.push_back(std::make_unique<Round>(team, ranks, what, seed + played.size()));
    Round& round = *played.back();
    for (int rank = 0; rank < ranks; ++rank) {
      streams[rank].push_back(round.Launch(rank, broken ? 20'000'000 : 2'000'000'000, [&right, &round, &what, rank] {
        if (!round.Right(rank)) {
          right = false;
          std::cout << "kind " << static_cast<int>(what.kind) << " dtype " << static_cast<int>(what.dtype) << " op "
                    << static_cast<int>(what.op) << " block " << what.block << " rank " << rank << std::endl;
        }
      }));
    }
  }
  CHECK(machine.Run(streams, {seed, broken ? broken(team.cluster) : Faults{}}));
  for (int rank = 0; rank < ranks; ++rank) {
    if (team.cluster.status(rank).fault != 0) return Outcome::kStuck;
  }
  return right ? Outcome::kRight : Outcome::kWrong;
}

CASE("arithmetic") {
  int combinations = 0;
  std::vector<What> rounds;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      for (bool mean : {false, true}) {
        What what{MulticastKind::kAllReduce, static_cast<DType>(dtype), static_cast<ReduceOp>(op), mean, 300, 1};
        if ((mean && what.op != ReduceOp::kSum) || !cuda::SwitchReduces(what.dtype, what.op, mean)) continue;
        ++combinations;
        if (cuda::simt::kThreadSanitizer && dtype % 4 != 0) continue;  // all dtypes have the same fences and waits
        rounds.push_back(what);
        what.kind = MulticastKind::kReduceScatter;
        what.block = 33;
        rounds.push_back(what);
        what.special = what.dtype >= DType::kF16 && what.dtype <= DType::kF64;
        if (!what.special) continue;
        what.block = 1000;
        rounds.push_back(what);
      }
    }
  }
  CHECK_EQ(combinations, 59);
  CHECK(!cuda::SwitchReduces(DType::kF8E5M2, ReduceOp::kMax, false));
  CHECK(!cuda::SwitchReduces(DType::kF32, ReduceOp::kProd, false));
  CHECK(!cuda::SwitchReduces(DType::kInt32, ReduceOp::kSum, true));
  CHECK(Play(3, 16384, rounds, 1) == Outcome::kRight);
}

// The memory has room for one run of packs, or a few, in each half of a lane's part, so that blocks take many slices.
CASE("sizes") {
  for (int ranks : {2, 3, 8}) {
    for (uint64_t runs : {1, 3}) {
      for (uint64_t block : {0, 1, 7, 300, 2111}) {
        if (cuda::simt::kThreadSanitizer && (block != 300 || ranks == 8)) continue;
        std::vector<What> rounds;
        for (uint32_t lanes : {2, 5, 1}) {
          rounds.push_back({MulticastKind::kAllReduce, DType::kF32, ReduceOp::kSum, true, block, lanes});
          rounds.push_back(
              {MulticastKind::kAllGather, DType::kInt8, ReduceOp::kSum, false, block, lanes, false, lanes});
          rounds.push_back({MulticastKind::kAllReduce, DType::kBF16, ReduceOp::kSum, false, block, lanes, true, 1});
          rounds.push_back({MulticastKind::kReduceScatter, DType::kF16, ReduceOp::kSum, false, block, lanes, false, 3});
          // In multicast memory these elements are twice as wide.
          rounds.push_back({MulticastKind::kAllReduce, DType::kF16, ReduceOp::kSum, true, block, lanes, false, 5});
          rounds.push_back({MulticastKind::kReduceScatter, DType::kBF16, ReduceOp::kMax, false, block, lanes, true, 2});
          rounds.push_back({MulticastKind::kAllReduce, DType::kF64, ReduceOp::kMin, false, block, lanes, true, 1});
        }
        CHECK(Play(ranks, 2 * kLanes * ranks * 1024 * runs, rounds, block + 1) == Outcome::kRight);
      }
    }
  }
}

CASE("a missing rank is named") {
  Team team(3, 8192);
  Round round(team, 3, {MulticastKind::kAllReduce, DType::kF32, ReduceOp::kSum, false, 3000, 1}, 1);
  cuda::simt::Machine machine;
  std::vector<cuda::simt::Stream> streams(3);
  for (int rank : {0, 1}) streams[rank].push_back(round.Launch(rank, 3'000'000));
  CHECK(machine.Run(streams, {1, {}}));
  int blamed = 0;
  for (int rank : {0, 1}) {
    const cuda::Status& status = team.cluster.status(rank);
    CHECK(status.fault != 0);
    blamed += status.peer == 2 && status.wait == static_cast<uint32_t>(cuda::Wait::kBegin);
  }
  CHECK(blamed > 0);
}

Faults LostRelease(Cluster&) {
  Faults faults;
  faults.lost_release = true;
  return faults;
}
Faults LostAliasFence(Cluster&) {
  Faults faults;
  faults.lost_alias_fence = true;
  return faults;
}
template <uint64_t cuda::EpochBarrier::* kWord>
Faults Skipped(Cluster& cluster) {
  Faults faults;
  faults.skipped_wait = [&cluster](const uint64_t* word) {
    for (int rank = 0; rank < 4; ++rank) {
      for (int peer = 0; peer < 4; ++peer) {
        if (peer != rank && &(cluster.barrier(rank, 0, peer).*kWord) == word) return true;
      }
    }
    return false;
  };
  return faults;
}

void CheckMutations() {
  struct Mutation {
    const char* what;
    Faults (*broken)(Cluster&);
  };
  constexpr Mutation kMutations[] = {{"a barrier is seen before the data", LostRelease},
                                     {"no fence between aliases", LostAliasFence},
                                     {"no rank waits at the meetings", Skipped<&cuda::EpochBarrier::met>},
                                     {"no rank waits for ends", Skipped<&cuda::EpochBarrier::end>}};
  for (MulticastKind kind : {MulticastKind::kAllReduce, MulticastKind::kReduceScatter, MulticastKind::kAllGather}) {
    const uint64_t block = kind == MulticastKind::kAllReduce ? 1500 : 700;
    // Several rounds, since some faults show only where memory is used again.
    const std::vector<What> rounds(3, {kind, DType::kF32, ReduceOp::kSum, false, block, 1});
    for (const Mutation& mutation : kMutations) {
      int seen = 0;
      std::cout.setstate(std::ios::failbit);
      for (uint64_t seed = 1; seed <= 5; ++seed)
        seen += Play(4, 8192, rounds, seed, mutation.broken) == Outcome::kWrong;
      std::cout.clear();
      std::cout << static_cast<int>(kind) << ": " << mutation.what << ": seen by " << seen << " of 5 seeds"
                << std::endl;
      CHECK(seen > 0);
    }
    for (uint64_t seed = 0; seed <= 5; ++seed) CHECK(Play(4, 8192, rounds, seed) == Outcome::kRight);
  }
}

CASE("without a fence or a wait the results are wrong") {
  if (!cuda::simt::kThreadSanitizer) CheckMutations();
}

}  // namespace
}  // namespace jaxring::test
