// Many operations that begin together, as those of a joined call: more messages than a ring has slots for. Where each
// rank's fill its peers' rings before these have sent theirs, the launching threads put them aside themselves.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ffi/tests/job.h"
#include "ffi/tests/schedules.h"
#include "ffi/tests/values.h"

namespace jaxring::test {
namespace {

constexpr int kProcesses = 4, kOperations = 60, kRounds = 20;
// A second is the longest that a launching thread waits.
constexpr int64_t kPatienceUs = 1000000;

void CheckTogether(Protocol protocol, uint64_t block) {
  Job job(kProcesses, Wire::kShared, EngineOptions{2, 4096, 20, kPatienceUs}, 1);
  Settings settings;
  settings.protocol = protocol;
  settings.block = block;
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kOperations; ++i) {
    calls.push_back(std::make_unique<Call>(&job, Find("all_reduce direct 4x1 x1"), settings));
  }
  int at_once = 0;
  uint64_t spills = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<uint64_t> before(kProcesses);
    for (int rank = 0; rank < kProcesses; ++rank) before[rank] = job.engine(rank).counters().inline_operations;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kProcesses; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<std::vector<int32_t>> data(kOperations);
        Ends ends("rank " + std::to_string(rank));
        {
          LaunchTogether together(&job.engine(rank));
          for (int i = 0; i < kOperations; ++i) {
            data[i].resize(block);
            for (uint64_t k = 0; k < block; ++k) data[i][k] = static_cast<int32_t>(k) * 8 + round * (rank + 1) + i;
            calls[i]->Arrive(rank, round, data[i].data(), data[i].data(), ends.Expect());
          }
        }
        ends.WaitOk();
        for (int i = 0; i < kOperations; ++i) {
          for (uint64_t k = 0; k < block; ++k) {
            CHECK_EQ(data[i][k], static_cast<int32_t>(k) * 8 * 4 + round * 10 + i * 4);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    int ended_there = 0;
    for (int rank = 0; rank < kProcesses; ++rank) {
      Engine& engine = job.engine(rank);
      CHECK_EQ(engine.stash().bytes(), 0u);
      ended_there += engine.counters().inline_operations - before[rank] == kOperations;
    }
    at_once += ended_there == kProcesses;
  }
  for (int rank = 0; rank < kProcesses; ++rank) spills += job.engine(rank).counters().spills;
  // The first round makes the plans. A busy machine may spoil some, a ring that stays full spoils nearly all.
  CHECK(at_once > 0);
  CHECK(spills > 0);
}

}  // namespace
}  // namespace jaxring::test

int main() {
  using namespace jaxring::test;
  CheckTogether(jaxring::Protocol::kLL, 2000);
  CheckTogether(jaxring::Protocol::kSimple, 1000);
}
