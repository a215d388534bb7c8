// No peer writes to a buffer after its launch has ended: a rank that is aborted in the middle of a collective returns
// only when no peer can write to its buffers any more.
#include "tests/cuda/cuda_scene.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

using cuda::simt::Faults;
constexpr char kCanary = 0x3C;

// A kernel of one thread that waits for that time of the machine's clock and then calls `what`.
cuda::simt::Kernel At(uint64_t time, const std::function<void()>& what) {
  return {1,
          1,
          [=] {
            while (cuda::Clock() < time) cuda::Pause(1);
            if (what) what();
          },
          {}};
}

struct Outcome {
  bool kept;    // rank 0's memory was not changed after its launch
  bool failed;  // rank 0's launch failed
};

// Rank 0 is launched at time 0 and is aborted at `end`; rank 1 is launched at `begin`.
Outcome Play(uint64_t begin, uint64_t end, uint64_t block, const cuda::simt::Options& options) {
  static cuda::simt::Machine machine;
  Scene scene("all_reduce direct 1x2 x1", cuda::Protocol::kSimple, block);
  uint32_t abort = 0;
  cuda::Args first = scene.Args(0), second = scene.Args(1);
  first.failure.abort = &abort;
  Buffer& out = scene.outputs[0];
  const auto give_back = [&] { std::memset(out.data(), kCanary, out.size()); };
  const auto set = [&] { cuda::StoreRelaxed(&abort, 1u); };
  CHECK(machine.Run(
      {{LaunchOf(first, cuda::kWarp, give_back)}, {At(begin, {}), LaunchOf(second, cuda::kWarp)}, {At(end, set)}},
      options));
  Outcome outcome{true, scene.cluster->status(0).fault != 0};
  for (size_t i = 0; i < out.size(); ++i) outcome.kept = outcome.kept && out.data()[i] == kCanary;
  if (outcome.failed) CHECK(scene.cluster->status(1).fault != 0 || scene.cluster->epoch(1, 0) == 1);
  return outcome;
}

void CheckEndedEarly(int tries) {
  // Rank 0 first reads the abort word in the 256th iteration of its wait, so it gives up at about 8700.
  int failed = 0, good = 0, broken = 0;
  for (int i = 0; i < tries; ++i) {
    const uint64_t seed = i + 1;
    const uint64_t begin = 7000 + 7919ull * i % 4000;
    const Outcome outcome = Play(begin, 0, 8, {seed, {}});
    CHECK(outcome.kept);
    (outcome.failed ? failed : good)++;
    if (cuda::simt::kThreadSanitizer) continue;
    Faults faults;
    faults.lost_fence = true;
    broken += !Play(begin, 0, 8, {seed, faults}).kept;
  }
  std::cout << failed << " failed, " << good << " did not; without a fence, memory changed in " << broken << std::endl;
  CHECK(failed > 0 && good > 0);
  CHECK(cuda::simt::kThreadSanitizer || broken > 0);
}

void CheckEndedLate(int tries) {
  int failed = 0;
  for (int i = 0; i < tries; ++i) {
    // Rank 1 is paused for long, often in the middle of its part, so that rank 0 is done and is aborted meanwhile.
    const uint64_t from = 3000 + 7919ull * i % 10'000;
    const Outcome outcome = Play(0, from, 2000, {i + 1u, {}, {1, from, from + 50'000}});
    CHECK(outcome.kept);
    failed += outcome.failed;
  }
  std::cout << failed << " of " << tries << " were aborted" << std::endl;
  CHECK(failed > 0);
}

CASE("a rank that is aborted before its peer begins") { CheckEndedEarly(cuda::simt::kThreadSanitizer ? 60 : 3000); }

CASE("a rank that is aborted while its peer is in the collective") {
  CheckEndedLate(cuda::simt::kThreadSanitizer ? 10 : 200);
}

}  // namespace
}  // namespace jaxring::test
