// Sends and receives that are matched by key and sequence number, and all_to_all with ragged blocks.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/schedules.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

// Two sites send everything before a third receives anything: sends end at once, and messages keep their order.
void CheckHalves(const std::string& where, Wire wire, Protocol protocol) {
  constexpr int kTimes = 40;
  const Schedule &send = Find("permute send " + where), &recv = Find("permute recv " + where);
  Job job(send.processes(), wire);
  Settings settings;
  settings.block = 333;
  settings.protocol = protocol;
  settings.key = job.NextKey();
  Call first(&job, send, settings), second(&job, send, settings), receive(&job, recv, settings);
  std::vector<std::vector<Buffer>> inputs, outputs;
  for (int time = 0; time < kTimes; ++time) inputs.push_back(Inputs(first, time));
  for (int time = 0; time < kTimes; ++time) {
    Ends sent(send.name);
    for (int rank = 0; rank < send.ranks(); ++rank) {
      // A copy that is overwritten as soon as the send has ended.
      (time % 3 == 1 ? second : first).Arrive(rank, time, inputs[time][rank].data(), nullptr, sent.Expect());
    }
    sent.WaitOk();
  }
  std::vector<std::vector<Buffer>> originals;
  for (int time = 0; time < kTimes; ++time) originals.push_back(Inputs(first, time));
  for (auto& set : inputs) {
    for (Buffer& input : set) std::memset(input.data(), 0, input.size());
  }
  Ends received(recv.name);
  for (int time = 0; time < kTimes; ++time) outputs.push_back(Outputs(receive));
  for (int time = 0; time < kTimes; ++time) {
    for (int rank = recv.ranks(); rank-- > 0;) {
      receive.Arrive(rank, time, nullptr, outputs[time][rank].data(), received.Expect());
    }
  }
  received.WaitOk();
  for (int time = 0; time < kTimes; ++time) {
    Reference reference(receive, originals[time]);
    for (int rank = 0; rank < recv.ranks(); ++rank) reference.Check(rank, outputs[time][rank]);
  }
  for (int p = 0; p < job.processes(); ++p) CHECK_EQ(job.engine(p).network().unexpected().bytes(), 0u);
}

constexpr uint64_t kRows = 400;

// The number of elements that `from` sends to `to`: from none to many tiles.
uint64_t Length(int from, int to, uint64_t seed) {
  const uint64_t x = Random(seed * 64 + from * 8 + to);
  return x % 4 == 0 ? 0 : x % 4 == 1 ? x / 4 % 3 : x / 4 % 90;
}

std::unique_ptr<Extents> MakeExtents(int rank, int n, uint64_t seed) {
  auto extents = std::make_unique<Extents>();
  uint64_t in = seed % 3, out = 2 * kRows / 5;
  for (int peer = 0; peer < n; ++peer) {
    extents->in_offset.push_back(in);
    extents->in_length.push_back(Length(rank, peer, seed));
    in += extents->in_length.back() + peer % 2;
    extents->out_length.push_back(Length(peer, rank, seed));
    extents->out_offset.push_back(out);
    out = out + extents->out_length.back() + 1;
  }
  CHECK(in <= kRows && out <= 3 * kRows);
  extents->expected = extents->out_length;
  return extents;
}

void CheckRagged(const std::string& algorithm, const std::string& where, Wire wire, Protocol protocol) {
  const Schedule& schedule = Find("all_to_all " + algorithm + " " + where + " x1");
  const int n = schedule.ranks();
  Job job(schedule.processes(), wire);
  Settings settings;
  settings.protocol = protocol;
  settings.tile = std::min(16, 64 / schedule.group);
  Call call(&job, schedule, settings);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    std::vector<std::vector<int32_t>> in(n), out(n), want(n);
    Ends ends(schedule.name);
    std::vector<std::unique_ptr<Extents>> extents;
    for (int rank = 0; rank < n; ++rank) {
      extents.push_back(MakeExtents(rank, n, seed));
      for (uint64_t i = 0; i < kRows; ++i) in[rank].push_back(static_cast<int32_t>(rank * 10000 + i));
      out[rank].assign(3 * kRows, -1);
    }
    want = out;
    for (int rank = 0; rank < n; ++rank) {
      for (int peer = 0; peer < n; ++peer) {
        for (uint64_t i = 0; i < extents[rank]->out_length[peer]; ++i) {
          want[rank][extents[rank]->out_offset[peer] + i] = in[peer][extents[peer]->in_offset[rank] + i];
        }
      }
    }
    // Every third time one rank's numbers are refused: its process's ranks fail with it, and so do ranks that wait for
    // them.
    const bool refuse = seed % 3 == 2 && schedule.processes() == 1;
    if (refuse) {
      extents[1]->invalid = "an offset or size is negative";
      extents[1]->in_offset.assign(n, ~uint64_t{0} / 2);
      extents[1]->out_offset.assign(n, ~uint64_t{0} / 2);
    }
    for (int rank = 0; rank < n; ++rank) {
      call.Arrive(rank, 1, in[rank].data(), out[rank].data(), ends.Expect(), std::move(extents[rank]));
    }
    if (!refuse) {
      ends.WaitOk();
      CHECK(out == want);
      continue;
    }
    for (const Status& status : ends.Wait()) {
      CHECK(status.code == Code::kInvalidArgument);
      CHECK(status.message.find("rank 1 (process 0): an offset or size is negative") != std::string::npos);
    }
  }
}

CASE("sends and receives") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
    for (Wire wire : {Wire::kShared, Wire::kTcp}) {
      for (const char* where : {"1x1", "1x4", "2x2", "2+1+2"}) CheckHalves(where, wire, protocol);
    }
  }
}

CASE("ragged all-to-all") {
  for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
    for (Wire wire : {Wire::kShared, Wire::kTcp}) {
      for (const char* where : {"2x2", "4x1", "2+1+2", "2x4"}) CheckRagged("direct", where, wire, protocol);
      // Gathered messages whose parts differ in length, and have no byte or some tiles only.
      for (const char* algorithm : {"pxn", "multileader"}) {
        for (const char* where : {"2x2", "2x4", "3x2"}) CheckRagged(algorithm, where, wire, protocol);
      }
    }
  }
  CheckRagged("direct", "1x4", Wire::kShared, Protocol::kMemory);
}

}  // namespace
}  // namespace jaxring::test
