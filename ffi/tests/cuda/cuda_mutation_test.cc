// Mutation tests: the fences, memory orders and waits of the protocols are removed one at a time, and each time the
// result must be wrong or a wait must time out. This shows that the other tests would notice.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <iterator>
#include <string>

#include "tests/cuda/cuda_scene.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

using cuda::Protocol;
using cuda::simt::BulkFault;
using cuda::simt::Faults;

enum class Outcome { kRight, kWrong, kStuck };
constexpr const char* kOutcomes[] = {"right", "wrong", "stuck"};

constexpr const char* kRing = "all_reduce ring 4x1 x1";
constexpr const char* kDirect = "all_reduce direct 1x4 x1";
constexpr const char* kGather = "all_gather direct 1x4 x1";

// The least value of Args::bulk_bytes: all slices that can go by bulk copies do.
constexpr uint64_t kBulk = 16;

// Two launches with different buffers. A result is checked as soon as its launch has ended.
Outcome Play(const char* name, Protocol protocol, uint64_t seed, const std::function<Faults(Cluster&)>& broken,
             uint64_t bulk_bytes = 0, uint64_t block = 3000) {
  Scene first(name, protocol, block), second(name, protocol, block);
  const int ranks = first.schedule.ranks();
  std::vector<cuda::simt::Stream> streams(ranks);
  bool right = true;
  for (int rank = 0; rank < ranks; ++rank) {
    for (Scene* scene : {&first, &second}) {
      cuda::Args args = scene->plan.Args(*first.cluster, rank, scene->inputs[rank].data(), scene->outputs[rank].data());
      args.failure.timeout_ns = 20'000'000;
      args.bulk_bytes = bulk_bytes;
      args.call.number = 0x7fff7fff;  // as waits that are left out and forged lines have it
      const auto look = [&right, scene, rank, block] {
        const float* got = reinterpret_cast<const float*>(scene->outputs[rank].data());
        for (uint64_t i = 0; i < block * scene->schedule.out_blocks; ++i) {
          const auto of = [&](size_t r) { return reinterpret_cast<const float*>(scene->inputs[r].data())[i % block]; };
          float value = scene->schedule.reduces() ? 0 : of(i / block);
          for (size_t r = 0; r < scene->inputs.size() && scene->schedule.reduces(); ++r) value += of(r);
          right = right && std::fabs(got[i] - value) < 1e-5f;
        }
      };
      streams[rank].push_back(LaunchOf(args, 64, look));
    }
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {seed, broken ? broken(*first.cluster) : Faults{}}));
  bool stuck = false;
  for (int rank = 0; rank < ranks; ++rank) stuck = stuck || first.cluster->status(rank).fault != 0;
  return stuck ? Outcome::kStuck : right ? Outcome::kRight : Outcome::kWrong;
}

Faults LostRelease(Cluster&) {
  Faults faults;
  faults.lost_release = true;
  return faults;
}
Faults EarlyFlag(Cluster&) {
  Faults faults;
  faults.early_flag = true;
  return faults;
}
template <BulkFault kFault>
Faults LostInBulk(Cluster&) {
  Faults faults;
  faults.bulk = kFault;
  return faults;
}
// Skips the wait for some words of all ranks' connections or barriers.
template <class Pick>
std::function<Faults(Cluster&)> Skipped(Pick pick, uint64_t words = 1) {
  return [pick, words](Cluster& cluster) {
    Faults faults;
    faults.skipped_wait = [&cluster, pick, words](const uint64_t* word) {
      for (int rank = 0; rank < 4; ++rank) {
        for (int peer = 0; peer < 4; ++peer) {
          const uint64_t* const first = pick(cluster, rank, peer);
          if (peer != rank && word >= first && word < first + words) return true;
        }
      }
      return false;
    };
    return faults;
  };
}
const uint64_t* Arrived(Cluster& cluster, int rank, int peer) { return cluster.connection(rank, 0, peer).arrived; }
const uint64_t* Credit(Cluster& cluster, int rank, int peer) { return cluster.connection(rank, 0, peer).credit; }
// Only in the second launch: during the first the addresses are not there before the lines are.
Faults ForgedBegin(Cluster& cluster) {
  Faults faults;
  faults.forged_line = [&cluster](const uint32_t* line) {
    for (int rank = 0; rank < 4; ++rank) {
      for (int peer = 0; peer < 4; ++peer) {
        const auto& begun = cluster.barrier(rank, 0, peer).begun;
        if (peer != rank && (line == begun[0] || line == begun[1]))
          return cluster.epoch(rank, 0) == 1 && (line[1] & 0xffff) == 1;
      }
    }
    return false;
  };
  return faults;
}
const uint64_t* End(Cluster& cluster, int rank, int peer) { return &cluster.barrier(rank, 0, peer).end; }

struct Mutation {
  const char* what;
  const char* schedule;
  Protocol protocol;
  std::function<Faults(Cluster&)> broken;
  Outcome expected;  // with at least one seed; with the others the result may be right
  uint64_t bulk_bytes = 0;
};

const std::vector<Mutation>& Mutations() {
  static const std::vector<Mutation> mutations = {
      {"simple: a counter is seen before the data", kRing, Protocol::kSimple, LostRelease, Outcome::kWrong},
      {"simple: no rank waits for messages", kRing, Protocol::kSimple, Skipped(Arrived, 4), Outcome::kWrong},
      {"simple: no rank waits for room", kRing, Protocol::kSimple, Skipped(Credit), Outcome::kWrong},
      {"ll: a flag is seen before the data", kRing, Protocol::kLL, EarlyFlag, Outcome::kWrong},
      {"ll: no rank waits for room", kRing, Protocol::kLL, Skipped(Credit), Outcome::kStuck},
      {"ll128: a flag is seen before the data", kRing, Protocol::kLL128, EarlyFlag, Outcome::kWrong},
      {"ll128: no rank waits for room", kRing, Protocol::kLL128, Skipped(Credit), Outcome::kStuck},
      {"barriers: an end is seen before the data", kDirect, Protocol::kSimple, LostRelease, Outcome::kWrong},
      {"barriers: no rank waits for begins", kDirect, Protocol::kSimple, ForgedBegin, Outcome::kWrong},
      {"barriers: no rank waits for ends", kDirect, Protocol::kSimple, Skipped(End), Outcome::kWrong},
      {"bulk: no fence after the barriers' initialisation", kRing, Protocol::kSimple, LostInBulk<BulkFault::kNoInit>,
       Outcome::kWrong, kBulk},
      {"bulk: no fence before the copies", kRing, Protocol::kSimple, LostInBulk<BulkFault::kNoFence>, Outcome::kWrong,
       kBulk},
      {"bulk: no thread waits for loads", kRing, Protocol::kSimple, LostInBulk<BulkFault::kNoArrival>, Outcome::kWrong,
       kBulk},
      {"bulk: stages are loaded again too early", kRing, Protocol::kSimple, LostInBulk<BulkFault::kNoReuse>,
       Outcome::kWrong, kBulk},
      {"bulk: a message is announced before it is stored", kRing, Protocol::kSimple, LostInBulk<BulkFault::kNoStored>,
       Outcome::kWrong, kBulk},
      {"bulk: a message is announced when its source was read", kRing, Protocol::kSimple,
       LostInBulk<BulkFault::kReadOnly>, Outcome::kWrong, kBulk},
      {"bulk: a lane ends before it has stored", kGather, Protocol::kSimple, LostInBulk<BulkFault::kNoStored>,
       Outcome::kWrong, kBulk},
      {"bulk: a lane ends when its sources were read", kGather, Protocol::kSimple, LostInBulk<BulkFault::kReadOnly>,
       Outcome::kWrong, kBulk},
  };
  return mutations;
}

CASE("without a mutation the results are right") {
  for (uint64_t seed = 0; seed <= 3; ++seed) {
    for (auto protocol : {Protocol::kLL, Protocol::kLL128}) {
      CHECK(Play(kRing, protocol, seed, {}) == Outcome::kRight);
    }
    for (uint64_t bulk_bytes : {uint64_t{0}, kBulk}) {
      CHECK(Play(kRing, Protocol::kSimple, seed, {}, bulk_bytes) == Outcome::kRight);
      CHECK(Play(kDirect, Protocol::kSimple, seed, {}, bulk_bytes) == Outcome::kRight);
      CHECK(Play(kGather, Protocol::kSimple, seed, {}, bulk_bytes) == Outcome::kRight);
    }
  }
}

// Some pieces end with a tile and others have one element more, so that chunks of the last tile are empty. No barrier
// of a slice is passed then, only those around the length of a scratch chunk.
CASE("empty chunks in scratch memory") {
  constexpr uint64_t kTile = 256, kPieces = 8;
  for (uint64_t seed = 0; seed <= 3; ++seed) {
    CHECK(Play("all_reduce halving_doubling 2x4 x1", Protocol::kSimple, seed, {}, 0, kPieces * kTile + 4) ==
          Outcome::kRight);
  }
}

void CheckMutations() {
  for (const Mutation& mutation : Mutations()) {
    int seen = 0;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const Outcome outcome = Play(mutation.schedule, mutation.protocol, seed, mutation.broken, mutation.bulk_bytes);
      if (outcome != Outcome::kRight && outcome != mutation.expected) {
        std::cerr << mutation.what << ": " << kOutcomes[static_cast<int>(outcome)] << std::endl;
        Fail(__FILE__, __LINE__, "each mutation shows as expected");
      }
      seen += outcome == mutation.expected;
    }
    std::cout << mutation.what << ": seen by " << seen << " of 5 seeds" << std::endl;
    CHECK(seen > 0);
  }
}

// Three one-shot all-reduces of a dtype and number of ranks that have a kernel of their own.
Outcome PlayOneShot(uint64_t seed, const Faults& faults, int launches) {
  constexpr uint64_t kBlock = 500, kRanks = 4;
  ClusterShape shape{kRanks, 2, {0, 0, 0, 0}, Protocol::kLL, 4, 128, cuda::StageBytes(4 * kBlock)};
  Cluster cluster(shape);
  std::vector<std::vector<Buffer>> in(launches), out(launches);
  std::vector<cuda::simt::Stream> streams(kRanks);
  bool right = true;
  for (int launch = 0; launch < launches; ++launch) {
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      in[launch].emplace_back(4 * kBlock);
      out[launch].emplace_back(4 * kBlock);
      float* values = reinterpret_cast<float*>(in[launch][rank].data());
      for (uint64_t i = 0; i < kBlock; ++i) values[i] = static_cast<float>((launch + 1) * (i + rank));
    }
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      cuda::Args args = cluster.Common(rank, in[launch][rank].data(), out[launch][rank].data(), true);
      args.failure.timeout_ns = 20'000'000;
      args.shape.block_elements = kBlock;
      args.shape.lanes = 2;
      args.call.dtype = DType::kF32;
      args.call.op = ReduceOp::kSum;
      args.call.reduces = true;
      const auto look = [&right, &out, launch, rank] {
        const float* got = reinterpret_cast<const float*>(out[launch][rank].data());
        for (uint64_t i = 0; i < kBlock; ++i) right = right && got[i] == static_cast<float>((launch + 1) * (4 * i + 6));
      };
      streams[rank].push_back(FusedLaunchOf(cuda::Fused::kAllReduceOneShot, args, 64, look));
    }
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {seed, faults}));
  bool stuck = false;
  for (uint64_t rank = 0; rank < kRanks; ++rank) stuck = stuck || cluster.status(rank).fault != 0;
  return stuck ? Outcome::kStuck : right ? Outcome::kRight : Outcome::kWrong;
}

CASE("one-shot all-reduces without a mutation") {
  for (uint64_t seed = 0; seed <= 5; ++seed) CHECK(PlayOneShot(seed, {}, 3) == Outcome::kRight);
}

CASE("mutations of the one-shot all-reduce") {
  Faults early, forged, barrier;
  early.early_flag = true;
  forged.forged_line = [](const uint32_t* line) { return line[1] == 0; };  // in the first launch
  barrier.lost_barrier = true;
  int seen[3] = {};
  for (uint64_t seed = 0; seed <= 5; ++seed) {
    if (cuda::simt::kThreadSanitizer || seed == 0) continue;
    seen[0] += PlayOneShot(seed, early, 3) == Outcome::kWrong;
    seen[1] += PlayOneShot(seed, forged, 1) == Outcome::kWrong;
    // A thread takes the next launch's number for this one's.
    seen[2] += PlayOneShot(seed, barrier, 3) != Outcome::kRight;
  }
  std::cout << "a flag before its data: seen by " << seen[0] << " of 5 seeds; no wait for lines: " << seen[1]
            << "; no barrier at the end: " << seen[2] << std::endl;
  for (int each : seen) CHECK(cuda::simt::kThreadSanitizer || each > 0);
}

Faults LostAcquire(Cluster&) {
  Faults faults;
  faults.lost_acquire = true;
  return faults;
}

// Mutations in which ThreadSanitizer must report a race in the ring, whether its result is right or not.
constexpr Faults (*kRaces[])(Cluster&) = {LostRelease, LostAcquire};

// Each runs in its own process, which ends with the sanitizer's exit status when a race is reported.
void CheckReports() {
  for (size_t i = 0; i < std::size(kRaces); ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      CHECK(freopen("/dev/null", "w", stderr) != nullptr);
      execl("/proc/self/exe", "cuda_mutation_test", "RACE", std::to_string(i).c_str(), nullptr);
      std::_Exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 66);
  }
}

CASE("each mutation shows as expected") {
  if (cuda::simt::kThreadSanitizer) {
    CheckReports();
  } else {
    CheckMutations();
  }
}

}  // namespace
}  // namespace jaxring::test

// This test has its own main because the program executes itself, with the arguments RACE and a number, once for each
// race that ThreadSanitizer must report.
int main(int argc, char** argv) {
  using namespace jaxring::test;
  if (argc == 3 && std::string(argv[1]) == "RACE") {
    Play(kRing, Protocol::kSimple, 0, kRaces[std::atoi(argv[2])]);
    return 0;
  }
  return RunAllCases(argc, argv);
}
