// All-reduces for tools/engine_counts.py to count: `engine_counts BYTES ROUNDS`, four ranks of one process, one thread.
#include <sched.h>

#include <atomic>
#include <cstdlib>

#include "tests/support/job.h"

namespace jaxring::test {
namespace {

constexpr int kRanks = 4;

void Play(uint64_t elements, int rounds) {
  Job job(1, Wire::kShared, 4096);
  Settings settings;
  settings.dtype = DType::kF32;
  settings.block = elements;
  // As in jaxring/runtime/planner.py.
  settings.tile = 16384;
  settings.piece_bytes = 4096;
  Call call(&job, Find("all_reduce direct 1x4 x1"), settings);
  std::vector<std::vector<float>> in(kRanks, std::vector<float>(elements, 1.0f)), out = in;
  for (int round = 0; round < rounds; ++round) {
    std::atomic<int> ended{0};
    for (int rank = 0; rank < kRanks; ++rank) {
      Arrival arrival{rank, rank, round, {}, elements * sizeof(float), elements * sizeof(float)};
      arrival.participant.in = in[rank].data();
      arrival.participant.out = out[rank].data();
      // The threads that complete XLA's futures are not counted, since their work depends on timing.
      arrival.participant.done_is_quick = true;
      arrival.participant.done = [&ended](const Status& status) {
        CHECK(status.ok());
        ended.fetch_add(1, std::memory_order_release);
      };
      call.site(rank)->Arrive(std::move(arrival));
    }
    while (ended.load(std::memory_order_acquire) != kRanks) sched_yield();
    for (const auto& values : out) CHECK(values.front() == kRanks && values.back() == kRanks);
  }
}

}  // namespace
}  // namespace jaxring::test

int main(int argc, char** argv) {
  CHECK_EQ(argc, 3);
  jaxring::test::Play(std::strtoull(argv[1], nullptr, 10) / sizeof(float), std::atoi(argv[2]));
}
