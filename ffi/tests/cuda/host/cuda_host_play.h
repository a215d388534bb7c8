// Runs a schedule among the processes of a test on the CUDA engine's host half: makes buffers, launches, replays graphs
// and checks results.
#pragma once

#include <signal.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "tests/cuda/host/cuda_host.h"

namespace jaxring::test {

// Element i of block b of a rank's input. Sums of these are exact in every dtype used.
inline int Element(int rank, int block, uint64_t i, int round) {
  return (rank * 5 + block * 3 + static_cast<int>(i % 7) + round) % 11 - 5;
}

inline int Expected(const Schedule& s, int rank, int block, uint64_t i, int round) {
  const int n = s.ranks();
  int sum = 0;
  if (s.reduces()) {
    for (int r = 0; r < n; ++r) sum += Element(r, s.collective == "reduce_scatter" ? rank : 0, i, round);
  }
  if (s.collective == "all_reduce" || s.collective == "reduce_scatter") return sum;
  if (s.collective == "reduce") return rank == s.root ? sum : 0;
  if (s.collective == "broadcast") return Element(s.root, 0, i, round);
  if (s.collective == "scatter") return Element(s.root, rank, i, round);
  if (s.collective == "all_gather") return Element(block, 0, i, round);
  if (s.collective == "gather") return rank == s.root ? Element(block, 0, i, round) : 0;
  if (s.collective == "all_to_all") return Element(block, rank, i, round);
  CHECK(s.collective == "permute");
  for (size_t p = 0; p < s.perm.size(); p += 2) {
    if (s.perm[p + 1] == rank) return Element(s.perm[p], 0, i, round);
  }
  return 0;
}

inline uint64_t BytesOf(const Schedule& schedule, uint64_t block) {
  return 4096 + 4 * block * (schedule.in_blocks + schedule.out_blocks);
}

// A rank's buffers in one allocation, which is of the driver's virtual memory calls like XLA's or cudaMalloc's, so that
// one region holds both at offsets.
class Buffers {
 public:
  Buffers(int rank, const Schedule& schedule, uint64_t block, bool is_virtual = true)
      : rank_(rank),
        schedule_(schedule),
        block_(block),
        host_(block * std::max(schedule.in_blocks, schedule.out_blocks)) {
    const uint64_t bytes = BytesOf(schedule, block);
    in = (is_virtual ? cuda::ThisGpu().memory.AllocateShared(DeviceOf(rank), bytes)
                     : cuda::ThisGpu().memory.Allocate(DeviceOf(rank), bytes)) +
         256;
    out = in + (4 * block * schedule.in_blocks + 255) / 256 * 256;
  }
  void Fill(int round) {
    for (int b = 0; b < schedule_.in_blocks; ++b) {
      for (uint64_t i = 0; i < block_; ++i) host_[b * block_ + i] = Element(rank_, b, i, round);
    }
    cuda::ThisGpu().memory.Copy(DeviceOf(rank_), in, host_.data(), 4 * block_ * schedule_.in_blocks);
    std::fill(host_.begin(), host_.end(), 0x77777777);
    cuda::ThisGpu().memory.Copy(DeviceOf(rank_), out, host_.data(), 4 * block_ * schedule_.out_blocks);
  }
  void Check(int round) {
    cuda::ThisGpu().memory.Copy(DeviceOf(rank_), host_.data(), out, 4 * block_ * schedule_.out_blocks);
    for (int b = 0; b < schedule_.out_blocks; ++b) {
      for (uint64_t i = 0; i < block_; ++i) {
        if (host_[b * block_ + i] == Expected(schedule_, rank_, b, i, round)) continue;
        std::cerr << schedule_.name << ", rank " << rank_ << ", round " << round << ", block " << b << ", element " << i
                  << std::endl;
        CHECK_EQ(host_[b * block_ + i], Expected(schedule_, rank_, b, i, round));
      }
    }
  }
  char *in, *out;

 private:
  int rank_;
  const Schedule& schedule_;
  uint64_t block_;
  std::vector<int32_t> host_;
};

// The rank and the block of its input that a block of a rank's output comes from; rank -1: zeros.
inline std::pair<int, int> SourceOf(const Schedule& s, int rank, int block) {
  if (s.collective == "all_gather") return {block, 0};
  if (s.collective == "gather") return {rank == s.root ? block : -1, 0};
  if (s.collective == "all_to_all") return {block, rank};
  if (s.collective == "scatter") return {s.root, rank};
  if (s.collective == "broadcast") return {s.root, 0};
  CHECK(s.collective == "permute");
  for (size_t p = 0; p < s.perm.size(); p += 2) {
    if (s.perm[p + 1] == rank) return {s.perm[p], 0};
  }
  return {-1, 0};
}

inline void CopyInstead(Processes& here, cuda::Communicator& group, const std::string& name, cuda::LaunchPlan& plan,
                        const Schedule& schedule, uint64_t staging) {
  for (int r = 0; r < schedule.ranks(); ++r) {
    if (!group.ranks().local(r)) continue;
    const cuda::Location offer = group.memory().OfferStaging(r, staging);
    here.store->Set(name + " staging " + std::to_string(r),
                    std::to_string(offer.region) + " " + std::to_string(offer.offset));
  }
  for (int r = 0; r < schedule.ranks(); ++r) {
    if (!group.ranks().local(r)) continue;
    for (int peer : group.ranks().Members(r)) {
      cuda::Location theirs;
      CHECK(std::sscanf(here.store->Get(name + " staging " + std::to_string(peer)).c_str(), "%lu %lu", &theirs.region,
                        &theirs.offset) == 2);
      group.memory().EnterStaging(r, peer, theirs);
    }
    std::vector<cuda::Move> moves;
    std::vector<int> arrivals;
    for (int to = 0; to < schedule.ranks(); ++to) {
      for (int b = 0; b < schedule.out_blocks; ++b) {
        const auto [from, block] = SourceOf(schedule, to, b);
        if (from == r) moves.push_back({block, to, b});
        if (from < 0 && to == r) moves.push_back({-1, r, b});
        if (from >= 0 && from != r && to == r) arrivals.push_back(b);
      }
    }
    plan.SetMoves(r, moves, arrivals);
  }
}

// Sets up the ranks' multicast memory in the planner's steps.
inline void JoinMulticast(Processes& here, cuda::Communicator& group, const std::string& name, uint64_t bytes) {
  const int ranks = static_cast<int>(group.ranks().spec().ranks.size());
  cuda::MulticastTeam& team = group.multicast();
  const auto step = [&](const char* what, const std::function<void(int)>& take) {
    for (int r = 0; r < ranks; ++r) {
      if (!group.ranks().local(r)) continue;
      take(r);
      here.store->Set(name + what + std::to_string(r), "");
    }
    for (int r = 0; r < ranks; ++r) here.store->Get(name + what + std::to_string(r));
  };
  if (group.ranks().local(0)) here.store->Set(name + " multicast", Text(team.Offer(bytes)));
  const cuda::Location object = ToLocation(here.store->Get(name + " multicast"));
  step(" added ", [&](int r) { team.Join(r, object); });
  step(" bound ", [&](int r) { team.Bind(r); });
  step(" mapped ", [&](int r) { team.Map(r); });
  step(" probed ", [&](int r) { team.Probe(r); });
  step(" verified ", [&](int r) { team.Verify(r); });
}

// Replays two graphs in turn, `replays` times in all, a multiple of 10. Their buffers are others, so that a result that
// was left over from the replay before shows. Each rank has a thread, since a launch of a graph may wait until kernels
// have ended that wait for another rank's.
inline void Replay(std::map<int, Buffers>& even, std::map<int, Buffers>& odd, int replays,
                   const std::function<void(int, Buffers&)>& launch) {
  std::map<int, std::array<std::function<void()>, 2>> graphs;
  for (auto& [r, buffer] : even) {
    graphs[r] = {Captured(r, [&, r = r] { launch(r, even.at(r)); }), Captured(r, [&, r = r] { launch(r, odd.at(r)); })};
  }
  for (int round = 0; round < replays; round += 10) {
    for (auto& [r, buffer] : even) buffer.Fill(round);
    for (auto& [r, buffer] : odd) buffer.Fill(round + 1);
    std::vector<std::thread> threads;
    for (auto& [r, both] : graphs) {
      threads.emplace_back([&both = both] {
        for (int i = 0; i < 10; ++i) both[i % 2]();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& [r, buffer] : even) cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
    for (auto& [r, buffer] : even) buffer.Check(round);
    for (auto& [r, buffer] : odd) buffer.Check(round + 1);
  }
}

// Three rounds of launches, and then `replays` replays of graphs.
inline void Play(Processes& here, const GroupShape& shape, const Schedule& schedule, uint64_t block,
                 const std::function<void(cuda::LaunchPlanSpec&)>& change = {}, uint64_t* staged = nullptr,
                 int replays = 0, uint64_t staging = 0, bool is_virtual = true, uint64_t multicast = 0) {
  auto group = Join(here, shape);
  if (multicast != 0) JoinMulticast(here, *group, shape.name, multicast);
  Connect(here, *group, shape, schedule);
  auto plan = PlanOf(here, group, shape, schedule, DType::kInt32, block, change);
  if (staging != 0) CopyInstead(here, *group, shape.name, *plan, schedule, staging);
  here.runtime->Watch(plan);
  std::map<int, Buffers> buffers, others;
  for (std::map<int, Buffers>* set : {&buffers, &others}) {
    if (set == &others && replays == 0) continue;
    for (int r = 0; r < schedule.ranks(); ++r) {
      if (!group->ranks().local(r)) continue;
      const Buffers& own = set->emplace(r, Buffers(r, schedule, block, is_virtual)).first->second;
      if (plan->spec().zero_copy && !group->ranks().one_process()) {
        group->memory().ShareBuffers(r, own.in, plan->in_bytes(), own.out, plan->out_bytes());
      }
    }
  }
  Meet(here, shape.name + " shared");
  const auto launch = [&](int r, Buffers& buffer) {
    const Status status = plan->Launch(r, buffer.in, buffer.out, plan->in_bytes(), plan->out_bytes(), StreamOf(r));
    if (!status.ok()) std::cerr << status.message << std::endl;
    CHECK(status.ok());
  };
  const auto await = [&] {
    for (auto& [r, buffer] : buffers) cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
  };
  for (int round = 0; round < 3; ++round) {
    for (auto& [r, buffer] : buffers) {
      buffer.Fill(round);
      launch(r, buffer);
    }
    await();
    for (auto& [r, buffer] : buffers) buffer.Check(round);
  }
  if (replays > 0) Replay(buffers, others, replays, launch);
  if (staged != nullptr) *staged = plan->staged_launches();
}

inline GroupShape ShapeOf(const Schedule& schedule, std::vector<int> process, std::vector<int> domain,
                          cuda::Protocol protocol) {
  static int number = 0;  // the same in all processes, which run the same cases
  return {"group " + std::to_string(number++),
          std::move(process),
          std::move(domain),
          protocol,
          static_cast<uint32_t>(schedule.nlanes),
          8192,
          4};
}

// A process dies in the middle: the other process's launches end, and their error names it.
inline void DeathIn(Processes& here, const char* name, uint64_t staging = 0, uint64_t multicast = 0) {
  const Schedule& schedule = Find(name);
  const GroupShape shape = ShapeOf(schedule, {0, 0, 1, 1}, {0, 0, 0, 0}, cuda::Protocol::kSimple);
  auto group = Join(here, shape);
  if (multicast != 0) JoinMulticast(here, *group, shape.name, multicast);
  auto plan = PlanOf(here, group, shape, schedule, DType::kInt32, 100, [&](cuda::LaunchPlanSpec& spec) {
    if (multicast != 0) spec.kernel.multicast = cuda::MulticastKind::kAllReduce;
  });
  if (staging != 0) CopyInstead(here, *group, shape.name, *plan, schedule, staging);
  here.runtime->Watch(plan);
  here.store->Set("ready/" + std::to_string(here.own), "");
  here.store->Get("ready/" + std::to_string(1 - here.own));
  if (here.own == 1) kill(getpid(), SIGKILL);
  std::vector<Status> launched;
  for (int r : {0, 1}) {
    Buffers buffer(r, schedule, 100);
    buffer.Fill(0);
    launched.push_back(plan->Launch(r, buffer.in, buffer.out, plan->in_bytes(), plan->out_bytes(), StreamOf(r)));
  }
  for (int r : {0, 1}) {
    try {
      cuda::ThisGpu().streams.Synchronize(DeviceOf(r), StreamOf(r));
      CHECK(!launched[r].ok());  // the failure was noticed before this launch
    } catch (const cuda::GpuError& error) {
      CHECK(std::string(error.what()).find("launch failure") != std::string::npos);
    }
  }
  std::string why;
  CHECK(group->health().Broken(&why));
  CHECK(why.find("process 1") != std::string::npos);
  std::cout << why << std::endl;
  std::_Exit(7);  // the usual end would wait for the dead process
}

inline const std::vector<int> kDeathEnds = {7, 128 + SIGKILL};

// `ends`: the processes' exit statuses; all 0 if empty.
inline void PlayIn(int processes, void (*body)(Processes&), const std::vector<int>& ends = {}) {
  CHECK(RunProcesses(processes, body) == (ends.empty() ? std::vector<int>(processes, 0) : ends));
}

}  // namespace jaxring::test
