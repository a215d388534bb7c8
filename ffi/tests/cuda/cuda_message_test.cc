// Messages of the CUDA engine that do not go between peers' memory (a proxy thread carries the slots), and ragged
// chunks.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/cuda/cuda_scene.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

using cuda::Protocol;

// Stands for the proxy thread: ranks send into slots in their own memory, and this copies from there as many bytes as
// `sizes` says, and no more.
class Network {
 public:
  Network(Cluster& cluster, Protocol protocol) : cluster_(cluster), protocol_(protocol) {
    const ClusterShape& shape = cluster.shape();
    for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
      for (int from = 0; from < shape.ranks; ++from) {
        for (int to = 0; to < shape.ranks; ++to) {
          if (from == to) continue;
          wires_.push_back(std::make_unique<Wire>(shape));
          Wire& wire = *wires_.back();
          cuda::Connection& send = cluster.connection(from, lane, to);
          cuda::Connection& recv = cluster.connection(to, lane, from);
          wire.to = send.send_slots;
          wire.credit = const_cast<uint64_t*>(send.credit);
          wire.arrived = const_cast<uint64_t*>(recv.arrived);
          send.send_slots = wire.slots.data();
          send.tail = wire.words.as<uint64_t>();
          send.sizes = wire.words.as<uint32_t>() + 64;
          recv.give = wire.words.as<uint64_t>() + 16;
        }
      }
    }
  }

  // Runs on one thread until `ended` has reached `ranks`.
  void Carry(const int& ended, int ranks) {
    while (ended < ranks) {
      for (auto& wire : wires_) CarryOne(*wire);
      cuda::Pause(1);
    }
  }
  uint64_t carried() const { return carried_; }
  // As Cluster::StartAt, for slots that are empty.
  void StartAt(uint64_t number) {
    for (auto& wire : wires_) {
      std::fill_n(wire->words.as<uint64_t>(), cluster_.shape().slots, number);
      wire->words.as<uint64_t>()[16] = wire->moved = number;
    }
  }

 private:
  struct Wire {
    explicit Wire(const ClusterShape& shape) : slots(shape.slots * shape.slot_bytes), words(512) {}
    Memory slots, words;  // words: the tails, the receiver's count of slots read, the sizes
    char* to = nullptr;
    uint64_t *credit = nullptr, *arrived = nullptr;
    uint64_t moved = 0;
  };
  void CarryOne(Wire& wire) {
    const ClusterShape& shape = cluster_.shape();
    const uint64_t slot = wire.moved % shape.slots;
    const uint64_t stamp = cuda::LoadAcquire(wire.words.as<uint64_t>() + slot);
    const uint64_t given = cuda::LoadAcquire(wire.words.as<uint64_t>() + 16);
    if (!cuda::Stamp::Has(stamp, wire.moved) || wire.moved - given >= shape.slots) return;
    const uint32_t bytes = wire.words.as<uint32_t>()[64 + slot];
    CHECK(bytes > 0 && bytes <= shape.slot_bytes && bytes % 16 == 0);
    char* to = wire.to + slot * shape.slot_bytes;
    // A Simple slot is overwritten first, so that a copy of too few bytes gives a wrong result.
    if (protocol_ == Protocol::kSimple) std::memset(to, 0x6E, shape.slot_bytes);
    for (uint32_t at = 0; at < bytes; at += 16) {
      cuda::StoreLine(to + at, cuda::Load(wire.slots.data() + slot * shape.slot_bytes + at));
    }
    ++wire.moved;
    ++carried_;
    if (wire.arrived != nullptr) cuda::StoreRelease(wire.arrived + slot, stamp);
    cuda::StoreRelease(wire.credit, wire.moved);
  }

  Cluster& cluster_;
  Protocol protocol_;
  std::vector<std::unique_ptr<Wire>> wires_;
  uint64_t carried_ = 0;
};

void CheckNetwork(const char* name, Protocol protocol, uint64_t seed) {
  constexpr uint64_t kBlock = 1234;
  Scene scene(name, protocol, kBlock);
  Network network(*scene.cluster, protocol);
  const int ranks = scene.schedule.ranks();
  int ended = 0;
  std::vector<cuda::simt::Stream> streams(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int launch = 1; launch <= 3; ++launch) {
      streams[rank].push_back(LaunchOf(scene.Args(rank), 64, [&ended, launch] { ended += launch == 3; }));
    }
  }
  streams.push_back({{1, 1, [&] { network.Carry(ended, ranks); }, {}}});
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {seed, {}}));
  CHECK(network.carried() > 0);
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK_EQ(scene.cluster->status(rank).fault, 0u);
    for (uint64_t i = 0; i < kBlock; ++i) {
      float sum = 0;
      for (const Buffer& input : scene.inputs) sum += reinterpret_cast<const float*>(input.data())[i];
      CHECK(std::fabs(reinterpret_cast<const float*>(scene.outputs[rank].data())[i] - sum) < 1e-5f);
    }
  }
}

// all_to_all in which each pair has its own length, some zero and some several tiles. Chunks lie in any order, with
// gaps between them.
template <class T>
void CheckRagged(Protocol protocol, uint64_t seed) {
  const Schedule& schedule = Find("all_to_all direct 4x1 x1");
  CHECK_EQ(schedule.pieces, 1);
  constexpr int kRanks = 4;
  constexpr uint64_t kLengths[] = {0, 1, 515, 3, 2 * 512 / sizeof(T) + 5, 130, 0, 77};
  Settings settings;
  settings.dtype = sizeof(T) == 1 ? DType::kUInt8 : DType::kUInt32;
  settings.block = 16;
  CudaPlan plan(schedule, settings, 2);
  Cluster cluster({kRanks, 1, schedule.placement, protocol, 4, plan.slot_bytes(protocol)});
  const auto length = [&](int from, int to) { return kLengths[(from * 3 + to) % std::size(kLengths)]; };
  const auto value = [](int from, int to, uint64_t i) { return static_cast<T>(from * 64 + to * 16 + i * 7); };
  struct Rank {
    uint64_t in_offset[kRanks], in_length[kRanks], out_offset[kRanks], out_length[kRanks];
  };
  std::vector<Rank> ranks(kRanks);
  std::vector<Buffer> inputs, outputs;
  std::vector<cuda::simt::Stream> streams(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    uint64_t in = 3, out = 1;
    for (int p = kRanks - 1; p >= 0; --p) {
      const int shifted = (p + r) % kRanks;
      ranks[r].in_length[p] = length(r, p);
      ranks[r].in_offset[p] = in;
      in += length(r, p) + 2;
      ranks[r].out_length[shifted] = length(shifted, r);
      ranks[r].out_offset[shifted] = out;
      out += length(shifted, r) + 1;
    }
    inputs.emplace_back(in * sizeof(T));
    outputs.emplace_back(out * sizeof(T), 0x11);
    for (int p = 0; p < kRanks; ++p) {
      for (uint64_t i = 0; i < length(r, p); ++i) {
        Put<T>(inputs[r].data() + (ranks[r].in_offset[p] + i) * sizeof(T), value(r, p, i));
      }
    }
  }
  uint64_t longest = 0;
  for (int r = 0; r < kRanks; ++r) {
    for (int p = 0; p < kRanks; ++p) longest = std::max<uint64_t>(longest, length(r, p));
  }
  for (int r = 0; r < kRanks; ++r) {
    cuda::Args args = plan.Args(cluster, r, inputs[r].data(), outputs[r].data());
    args.extents = {ranks[r].in_offset, ranks[r].in_length, ranks[r].out_offset, ranks[r].out_length, &longest};
    args.shape.tiles = 0;
    streams[r].assign(2, LaunchOf(args, 64));
  }
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {seed, {}}));
  for (int r = 0; r < kRanks; ++r) {
    CHECK_EQ(cluster.status(r).fault, 0u);
    uint64_t covered = 0;
    for (int p = 0; p < kRanks; ++p) {
      for (uint64_t i = 0; i < length(p, r); ++i, ++covered) {
        char* at = outputs[r].data() + (ranks[r].out_offset[p] + i) * sizeof(T);
        CHECK_EQ(Get<T>(at), value(p, r, i));
        std::memset(at, 0x11, sizeof(T));
      }
    }
    CHECK(covered > 0);
    // The gaps between the chunks are unchanged.
    for (size_t i = 0; i < outputs[r].size(); ++i) CHECK_EQ(outputs[r].data()[i], 0x11);
  }
}

// Two calls of one shape, which one rank begins in the other order. Each rank that awaits a message of that one, and
// that one itself, names the other and its call. `network`: slots go by the proxy.
void CheckOtherOrder(const char* name, Protocol protocol, bool network, uint64_t seed) {
  constexpr uint32_t kCalls[] = {0x20005, 0x70009};
  constexpr int kStray = 1;
  Scene first(name, protocol, 1234), second(name, protocol, 1234);
  Cluster& cluster = *first.cluster;
  const int ranks = first.schedule.ranks();
  std::unique_ptr<Network> proxy;
  if (network) proxy = std::make_unique<Network>(cluster, protocol);
  int ended = 0;
  std::vector<cuda::simt::Stream> streams(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int turn : {0, 1}) {
      const int call = rank == kStray ? 1 - turn : turn;
      Scene& scene = call == 0 ? first : second;
      cuda::Args args = scene.plan.Args(cluster, rank, scene.inputs[rank].data(), scene.outputs[rank].data());
      args.call.number = kCalls[call];
      args.failure.timeout_ns = 20'000'000;
      streams[rank].push_back(LaunchOf(args, 64, [&ended, turn] { ended += turn; }));
    }
  }
  if (network) streams.push_back({{1, 1, [&] { proxy->Carry(ended, ranks); }, {}}});
  cuda::simt::Machine machine;
  CHECK(machine.Run(streams, {seed, {}}));
  for (int rank = 0; rank < ranks; ++rank) {
    // What each rank sends to each other, or to the next one only.
    const bool awaits = first.schedule.collective != "permute" || rank == kStray || rank == kStray + 1;
    const cuda::Status& status = cluster.status(rank);
    if (!awaits) continue;
    CHECK_EQ(status.fault, static_cast<uint32_t>(cuda::Fault::kOtherCall));
    CHECK_EQ(status.rank, rank);
    CHECK((rank == kStray) != (status.peer == kStray));
    CHECK_EQ(status.number, kCalls[rank == kStray ? 0 : 1] & 0xffff);
  }
}

CASE("calls in another order") {
  for (auto protocol : {Protocol::kSimple, Protocol::kLL, Protocol::kLL128}) {
    for (bool network : {false, true}) {
      if (network && protocol == Protocol::kLL128) continue;
      CheckOtherOrder("permute direct 4x1 x1", protocol, network, 3);
      CheckOtherOrder("all_to_all direct 4x1 x1", protocol, network, 4);
    }
  }
}

// A proxy thread carries what a message uses of its slot, and what it has overwritten of it, so that no line of an old
// message has a flag of a new one: short messages pass the number at which slots are written to their ends, and then
// come long ones whose flags are those of the first ones.
CASE("old lines in slots that a proxy thread carries") {
  const char* kName = "all_to_all direct 4x1 x1";
  Scene lengthy(kName, Protocol::kLL, 128), brief(kName, Protocol::kLL, 4);
  Cluster& cluster = *lengthy.cluster;
  const int ranks = lengthy.schedule.ranks();
  Network network(cluster, Protocol::kLL);
  constexpr uint64_t kBefore = 8, kTurn = uint64_t{1} << 16;
  const auto play = [&](Scene& scene, uint64_t number, int launches) {
    cluster.StartAt(number);
    network.StartAt(number);
    int ended = 0;
    std::vector<cuda::simt::Stream> streams(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const cuda::Args args = scene.plan.Args(cluster, rank, scene.inputs[rank].data(), scene.outputs[rank].data());
      for (int launch = 1; launch <= launches; ++launch) {
        streams[rank].push_back(LaunchOf(args, 32, [&, launch] { ended += launch == launches; }));
      }
    }
    streams.push_back({{1, 1, [&] { network.Carry(ended, ranks); }, {}}});
    cuda::simt::Machine machine;
    CHECK(machine.Run(streams, {6, {}}));
  };
  play(lengthy, kBefore, 4);
  for (Buffer& input : lengthy.inputs) {
    for (size_t i = 0; i < input.size(); ++i) input.data()[i] = static_cast<char>(~input.data()[i]);
  }
  play(brief, kTurn / 2 - 1, 8);
  play(lengthy, kTurn + kBefore, 4);
  for (int to = 0; to < ranks; ++to) {
    for (int from = 0; from < ranks; ++from) {
      constexpr size_t kBlock = 128 * 4;
      CHECK(std::memcmp(lengthy.outputs[to].data() + from * kBlock, lengthy.inputs[from].data() + to * kBlock,
                        kBlock) == 0);
    }
  }
}

CASE("slots that a proxy thread carries") {
  for (uint64_t seed : {0, 4, 5}) {
    for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL}) {
      CheckNetwork("all_reduce ring 4x1 x1", protocol, seed);
      CheckNetwork("all_reduce tree 4x1 x1", protocol, seed);
    }
  }
}

CASE("ragged chunks") {
  for (uint64_t seed : {0, 4, 5}) {
    for (auto protocol : {cuda::Protocol::kSimple, cuda::Protocol::kLL, cuda::Protocol::kLL128}) {
      CheckRagged<uint8_t>(protocol, seed);
      CheckRagged<uint32_t>(protocol, seed);
    }
  }
}

}  // namespace
}  // namespace jaxring::test
