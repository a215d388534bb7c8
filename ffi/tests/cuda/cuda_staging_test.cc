// Launches that copy their buffers to memory that others address, and back: alone and in turn with launches that do
// not.
#include <iostream>
#include <map>
#include <memory>
#include <utility>

#include "tests/cuda/cuda_launch.h"
#include "tests/cuda/cuda_scene.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

using cuda::Fused;
using cuda::simt::Faults;

constexpr int kRanks = 4;
constexpr uint32_t kLanes = 3, kThreads = 64;

// What a launch does, and the elements of its input and output in blocks.
struct Kind {
  const char* schedule;  // of the step table
  int fused;             // of the fused kernel in its place, or -1
  cuda::Protocol protocol = cuda::Protocol::kSimple;
};
constexpr Kind kKinds[] = {{"all_reduce hier_direct 2x2 x3", -1},
                           {"all_gather hier_direct 2x2 x3", -1},
                           {"all_reduce direct 1x4 x1", static_cast<int>(Fused::kAllReduceTwoShot)},
                           {"reduce_scatter direct 1x4 x1", static_cast<int>(Fused::kReduceScatter)},
                           {"all_to_all direct 1x4 x1", static_cast<int>(Fused::kAllToAll)}};
// By LL between the domains.
constexpr Kind kLines = {"all_reduce hier_direct 2x2 x3", -1, cuda::Protocol::kLL};

enum class Outcome { kRight, kWrong, kStuck };

// One launch of one rank: the call's buffers, and the memory that it is played on.
struct Buffers {
  Buffers(uint64_t in_bytes, uint64_t out_bytes)
      : in(in_bytes), out(out_bytes), staged_in(in_bytes), staged_out(out_bytes) {}
  Memory in, out, staged_in, staged_out;
};

// `launches` of a kind one after another with new values, of which each rank copies those that `staged` says. `skew`:
// of the addresses of the call's buffers.
Outcome Play(const Kind& kind, uint64_t block, int launches, const std::function<bool(int, int)>& staged, uint64_t seed,
             const std::function<Faults(const std::vector<cuda::LaunchState>&)>& broken = {}, uint64_t skew = 0) {
  Scene scene(kind.schedule, kind.protocol, block);
  const Schedule& schedule = scene.schedule;
  const uint64_t in_elements = block * schedule.in_blocks, out_elements = block * schedule.out_blocks;
  // A fused kernel has as many lanes as a launch says.
  const uint32_t lanes = kind.fused < 0 ? schedule.nlanes : kLanes;
  CHECK(lanes > 1);
  Cluster cluster({kRanks, lanes, schedule.placement, kind.protocol, 4, scene.plan.slot_bytes(kind.protocol)});
  std::vector<cuda::LaunchState> states(kRanks);
  std::vector<std::unique_ptr<Buffers>> buffers;
  std::vector<cuda::simt::Stream> streams(kRanks);
  const auto value = [](int launch, int rank, uint64_t i) {
    return static_cast<float>((launch * 7 + rank * 3 + i) % 50);
  };
  bool right = true;
  for (int launch = 0; launch < launches; ++launch) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Buffers& here = *buffers.emplace_back(std::make_unique<Buffers>(4 * in_elements + skew, 4 * out_elements + skew));
      for (uint64_t i = 0; i < in_elements; ++i) Put<float>(here.in.data() + skew + 4 * i, value(launch, rank, i));
      const bool copies = staged(launch, rank);
      cuda::Args args = scene.plan.Args(cluster, rank, copies ? here.staged_in.data() : here.in.data() + skew,
                                        copies ? here.staged_out.data() : here.out.data() + skew);
      if (copies) {
        args.staging.from = here.in.data() + skew;
        args.staging.to = here.out.data() + skew;
        args.staging.in_bytes = 4 * in_elements;
        args.staging.out_bytes = 4 * out_elements;
      }
      // Its kernel may have fewer than those of ranks that do not copy.
      const uint32_t threads = copies ? kThreads / 2 : kThreads;
      args.state = &states[rank];
      args.failure.timeout_ns = 50'000'000;
      args.call.number = 0x7fff7fff;  // as waits that are left out have it
      const auto look = [&, launch, rank, out = here.out.data() + skew] {
        for (uint64_t i = 0; i < out_elements; ++i) {
          float expected = 0;
          if (schedule.collective == "all_gather") expected = value(launch, static_cast<int>(i / block), i % block);
          if (schedule.collective == "all_to_all") {
            expected = value(launch, static_cast<int>(i / block), rank * block + i % block);
          }
          for (int r = 0; r < kRanks && schedule.reduces(); ++r) {
            expected += value(launch, r, schedule.collective == "all_reduce" ? i : rank * block + i);
          }
          float got;
          std::memcpy(&got, out + 4 * i, 4);
          right = right && got == expected;
        }
      };
      if (kind.fused < 0) {
        streams[rank].push_back(LaunchOf(args, threads, look));
      } else {
        args.shape.lanes = lanes;
        streams[rank].push_back(FusedLaunchOf(static_cast<Fused>(kind.fused), args, threads, look));
      }
    }
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {seed, broken ? broken(states) : Faults{}}));
  bool stuck = false;
  for (int rank = 0; rank < kRanks; ++rank) stuck = stuck || cluster.status(rank).fault != 0;
  return stuck ? Outcome::kStuck : right ? Outcome::kRight : Outcome::kWrong;
}

bool Always(int, int) { return true; }
bool InTurn(int launch, int rank) { return (launch + rank) % 3 != 0; }

CASE("results are right, whichever ranks copy") {
  for (const Kind& kind : kKinds) {
    for (uint64_t block : {uint64_t{1}, uint64_t{301}, uint64_t{3000}}) {
      if (cuda::simt::kThreadSanitizer && block != 301) continue;
      for (uint64_t seed = 0; seed <= 2; ++seed) {
        CHECK(Play(kind, block, 4, InTurn, seed) == Outcome::kRight);
        CHECK(Play(kind, block, 2, Always, seed, {}, 4) == Outcome::kRight);
      }
    }
  }
}

CASE("messages by lines") {
  for (uint64_t seed = 0; seed <= 2; ++seed) CHECK(Play(kLines, 301, 4, InTurn, seed) == Outcome::kRight);
}

CASE("an epilogue's launch copies, too") {
  Scene scene(kKinds[1].schedule, cuda::Protocol::kSimple, 100);
  std::vector<cuda::LaunchState> states(kRanks);
  std::vector<std::unique_ptr<Buffers>> buffers;
  std::vector<cuda::simt::Stream> streams(kRanks);
  cuda::EpilogueArgs epilogue{};
  epilogue.result = DType::kF32;
  for (int rank = 0; rank < kRanks; ++rank) {
    Buffers& here = *buffers.emplace_back(std::make_unique<Buffers>(400, 1600));
    for (int i = 0; i < 100; ++i) Put<float>(here.in.data() + 4 * i, static_cast<float>(100 * rank + i));
    cuda::Args args = scene.plan.Args(*scene.cluster, rank, here.staged_in.data(), here.staged_out.data());
    args.staging.from = here.in.data();
    args.staging.to = here.out.data();
    args.staging.in_bytes = 400;
    args.staging.out_bytes = 1600;
    args.state = &states[rank];
    streams[rank].push_back(LaunchOf(epilogue, args, kThreads));
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {1, {}}));
  for (int rank = 0; rank < kRanks; ++rank) {
    CHECK_EQ(scene.cluster->status(rank).fault, 0u);
    for (int i = 0; i < 400; ++i) CHECK_EQ(buffers[rank]->out.as<float>()[i], static_cast<float>(i));
  }
}

// Lanes that do not wait for each other, before the launch is played or after it, and copies that are not there when a
// member reads them.
CASE("mutations of the meeting of lanes") {
  if (cuda::simt::kThreadSanitizer) return;
  // `meeting`: the first of each launch, or the second. A thread loads the counter first to see how many have come, and
  // then waits for all.
  const auto no_wait = [](int meeting) {
    return [meeting](const std::vector<cuda::LaunchState>& states) {
      auto loads = std::make_shared<std::map<const void*, int>>();
      Faults faults;
      faults.skipped_wait = [&states, loads, meeting](const uint64_t* word) {
        for (const cuda::LaunchState& state : states) {
          if (word != &state.met) continue;
          int& load = (*loads)[cuda::simt::Machine::current];
          // The other meeting's waits take as many loads as they need.
          const bool waits = load % 2 == 1, here = load / 2 == meeting;
          const bool ends = !waits || here || __atomic_load_n(word, __ATOMIC_RELAXED) % kLanes == 0;
          if (ends) load = (load + 1) % 4;
          return waits && here;
        }
        return false;
      };
      return faults;
    };
  };
  const auto no_fence = [](const std::vector<cuda::LaunchState>&) {
    Faults faults;
    faults.lost_fence = true;
    return faults;
  };
  int seen[3] = {};
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    // A lane adds its share of one block, and copies its share of all of them.
    seen[0] += Play(kKinds[3], 3000, 1, Always, seed, no_wait(0)) == Outcome::kWrong;
    // What members' lanes have sent this rank's lane is other than what it copies.
    seen[1] += Play(kKinds[4], 3000, 1, Always, seed, no_wait(1)) == Outcome::kWrong;
    seen[2] += Play(kKinds[3], 3000, 3, Always, seed, no_fence) == Outcome::kWrong;
  }
  std::cout << "no lane waits for copies: seen by " << seen[0] << " of 8 seeds; for the ends: " << seen[1]
            << "; no fence: " << seen[2] << std::endl;
  for (int each : seen) CHECK(each > 0);
}

// A meeting that does not become complete ends by the deadline, on all ranks.
CASE("a meeting that is not complete") {
  if (cuda::simt::kThreadSanitizer) return;  // the other lanes do not wait for the last one's copies
  const auto more = [](const std::vector<cuda::LaunchState>& states) {
    // One lane too many has counted, so the last one waits for those of a launch that does not come.
    __atomic_store_n(const_cast<uint64_t*>(&states[1].met), 1, __ATOMIC_RELAXED);
    return Faults{};
  };
  CHECK(Play(kKinds[0], 301, 1, Always, 1, more) == Outcome::kStuck);
}

}  // namespace
}  // namespace jaxring::test
