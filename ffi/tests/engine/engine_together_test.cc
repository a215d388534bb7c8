// The operations of a large fused call begin together and send more messages than a ring has slots. If each rank fills
// its peers' rings before these have sent, the launching threads move messages to the unexpected-message queue.
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/fused_sites.h"

namespace jaxring::test {
namespace {

#if defined(__SANITIZE_THREAD__)  // a round takes over a second there
constexpr int kRounds = 6;
#else
constexpr int kRounds = 20;
#endif
constexpr int kProcesses = 4, kOperations = 60;
// A launching thread polls so long at most. A round takes over a second under ThreadSanitizer on a busy machine.
constexpr int64_t kPatienceUs = 5000000;

void CheckTogether(Protocol protocol, uint64_t block) {
  Job job(kProcesses, Wire::kShared, EngineOptions{2, 4096, 20, kPatienceUs}, 1);
  Settings settings;
  settings.protocol = protocol;
  settings.block = block;
  FusedSites call(&job, Find("all_reduce direct 4x1 x1"), settings, kOperations);
  int at_once = 0;
  uint64_t spills = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<uint64_t> before(kProcesses);
    for (int rank = 0; rank < kProcesses; ++rank) before[rank] = job.engine(rank).counters().inline_operations;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kProcesses; ++rank) {
      threads.emplace_back([&, rank] {
        FusedSites::Data data = call.Values(rank, round);
        Ends ends("rank " + std::to_string(rank));
        call.Arrive(rank, round, data, ends.Expect());
        ends.WaitOk();
        call.Check(data, round);
      });
    }
    for (std::thread& thread : threads) thread.join();
    int ended_there = 0;
    for (int rank = 0; rank < kProcesses; ++rank) {
      Engine& engine = job.engine(rank);
      CHECK_EQ(engine.network().unexpected().bytes(), 0u);
      ended_there += engine.counters().inline_operations - before[rank] == kOperations;
    }
    at_once += ended_there == kProcesses;
  }
  for (int rank = 0; rank < kProcesses; ++rank) spills += job.engine(rank).counters().spills;
  // The first round makes the plans. A busy machine may delay some rounds; a ring that stays full delays nearly all.
  CHECK(at_once > 0);
  CHECK(spills > 0);
}

CASE("LL") { CheckTogether(Protocol::kLL, 2000); }

CASE("Simple") { CheckTogether(Protocol::kSimple, 1000); }

}  // namespace
}  // namespace jaxring::test
