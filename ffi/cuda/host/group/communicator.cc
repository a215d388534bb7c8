#include "cuda/host/group/communicator.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <utility>

namespace jaxring::cuda {
namespace {

uint64_t RoundUp(uint64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

// Prepares the local ranks' devices first: pinned memory is made in the context of a device that is prepared already,
// and with none CUDA would make one on device 0, which may be none of them.
uint32_t* NewAbortWord(Gpu& gpu, const RankGroup& ranks) {
  for (int r = 0; r < ranks.size(); ++r) {
    if (ranks.local(r)) gpu.devices.Prepare(ranks[r].device);
  }
  return reinterpret_cast<uint32_t*>(gpu.memory.AllocatePinned(kLineBytes));
}

const char* const kMend =
    "Writes between the two GPUs do not arrive. PCIe access control (ACS) or an IOMMU that redirects them is a known "
    "cause: turn ACS off on the bridges between them, boot with iommu=pt or intel_iommu=off, or use GPUs that NVLink "
    "connects. JAXRING_P2P=none carries their data over the network instead.";

}  // namespace

Communicator::Communicator(Gpu& gpu, Regions& regions, Proxy* proxy, int process, CommunicatorSpec spec)
    : gpu_(gpu),
      regions_(regions),
      proxy_(proxy),
      ranks_(process, std::move(spec)),
      health_(NewAbortWord(gpu, ranks_)),
      memory_(gpu.memory, regions, ranks_, health_),
      multicast_(gpu, regions, ranks_.spec()) {
  for (int r = 0; r < ranks_.size(); ++r) {
    if (!ranks_.local(r)) continue;
    Local here{ranks_[r].device, nullptr, nullptr, {}, {}};
    regions_.Use(here.device);
    const std::vector<int> members = ranks_.Members(r);
    for (int m : members) {
      if (ranks_.local(m)) gpu_.devices.EnableAccess(here.device, ranks_[m].device);
    }
    here.arena = memory_.New(r, ArenaBytes());
    here.own = gpu_.memory.Allocate(here.device, OwnBytes());
    here.members.resize(members.size());
    locals_.emplace(r, std::move(here));
  }
}

// Runs only if setting it up has failed: see above.
Communicator::~Communicator() = default;

uint64_t Communicator::BarrierOffset(int writer) const { return writer * ranks_.spec().lanes * sizeof(EpochBarrier); }
uint64_t Communicator::ProbeOffset(int writer) const { return BarrierOffset(ranks_.size()) + writer * 3 * kLineBytes; }
uint64_t Communicator::StageOffset(int writer) const {
  return ProbeOffset(ranks_.size()) + writer * RoundUp(2 * ranks_.spec().stage_bytes);
}
uint64_t Communicator::ArenaBytes() const { return StageOffset(ranks_.size()); }

uint64_t Communicator::ConnectionIndex(Protocol protocol, uint32_t lane, int peer) const {
  return (static_cast<uint64_t>(protocol) * ranks_.spec().lanes + lane) * static_cast<uint64_t>(ranks_.size()) + peer;
}
uint64_t Communicator::OwnBytes() const {
  return ConnectionIndex(Protocol{kProtocols}, 0, 0) * sizeof(Connection) +
         RoundUp(static_cast<uint64_t>(ranks_.size()) * sizeof(Member)) +
         RoundUp(2 * ranks_.spec().lanes * sizeof(uint64_t));
}

Communicator::Local& Communicator::At(int rank) {
  ranks_.RequireLocal(rank);
  return locals_.at(rank);
}
const Communicator::Local& Communicator::At(int rank) const { return const_cast<Communicator*>(this)->At(rank); }

Location Communicator::OfferArena(int rank) { return memory_.Offer(rank, At(rank).arena, ArenaBytes()); }

void Communicator::EnterArena(int rank, int peer, Location theirs) {
  Local& here = At(rank);
  char* arena = memory_.Resolve(rank, peer, theirs);
  const std::vector<int> members = ranks_.Members(rank);
  for (size_t m = 0; m < members.size(); ++m) {
    if (members[m] != peer) continue;
    Member& member = here.members[m];
    member.theirs = reinterpret_cast<EpochBarrier*>(arena + BarrierOffset(rank));
    member.ours = reinterpret_cast<const EpochBarrier*>(here.arena + BarrierOffset(peer));
    member.regions = regions_.Table(here.device, ranks_[peer].process);
    member.stage_theirs = arena + StageOffset(rank);
    member.stage_ours = here.arena + StageOffset(peer);
    member.rank = peer;
    gpu_.memory.Copy(here.device,
                     here.own + ConnectionIndex(Protocol{kProtocols}, 0, 0) * sizeof(Connection) + m * sizeof(Member),
                     &member, sizeof member);
  }
}

uint64_t Communicator::Pattern(int writer, int reader) const {
  return (ranks_.hash() ^ (static_cast<uint64_t>(writer) << 32 | static_cast<uint32_t>(reader))) *
             0x9E3779B97F4A7C15ull |
         1;
}

// The probe's three lines in an arena: what the writer wrote, what this rank is about to write, what it read back.
void Communicator::Probe(int rank) {
  Local& here = At(rank);
  const std::vector<int> members = ranks_.Members(rank);
  for (size_t m = 0; m < members.size(); ++m) {
    const int peer = members[m];
    char* own = here.arena + ProbeOffset(peer);
    char* theirs = reinterpret_cast<char*>(here.members[m].theirs) - BarrierOffset(rank) + ProbeOffset(rank);
    const uint64_t pattern = Pattern(rank, peer);
    gpu_.memory.Copy(here.device, own + kLineBytes, &pattern, sizeof pattern);
    gpu_.memory.Copy(here.device, theirs, own + kLineBytes, sizeof pattern);
    gpu_.memory.Copy(here.device, own + 2 * kLineBytes, theirs, sizeof pattern);
    uint64_t back = 0;
    gpu_.memory.Copy(here.device, &back, own + 2 * kLineBytes, sizeof back);
    if (back != pattern) {
      throw std::runtime_error(ranks_[rank].name + " does not read from " + ranks_[peer].name +
                               " what it wrote there. " + kMend);
    }
  }
}

void Communicator::Verify(int rank) {
  Local& here = At(rank);
  for (int peer : ranks_.Members(rank)) {
    uint64_t found = 0;
    gpu_.memory.Copy(here.device, &found, here.arena + ProbeOffset(peer), sizeof found);
    if (found != Pattern(peer, rank)) {
      throw std::runtime_error(ranks_[rank].name + " does not find what " + ranks_[peer].name +
                               " wrote into its memory. " + kMend);
    }
  }
}

Connection* Communicator::ConnectionOf(int rank, int peer, Protocol protocol) const {
  return reinterpret_cast<Connection*>(At(rank).own) + ConnectionIndex(protocol, 0, peer);
}

void Communicator::Fill(int rank, Protocol protocol, bool members, Args* args) const {
  const Local& here = At(rank);
  const WireShape shape = ranks_.spec().wires[static_cast<int>(protocol)];
  const auto ranks = static_cast<uint64_t>(ranks_.size());
  args->group.connections = reinterpret_cast<Connection*>(here.own) + ConnectionIndex(protocol, 0, 0);
  char* behind = here.own + ConnectionIndex(Protocol{kProtocols}, 0, 0) * sizeof(Connection);
  args->group.members = reinterpret_cast<const Member*>(behind);
  args->group.member_count = members ? static_cast<uint32_t>(here.members.size()) : 0;
  args->group.epochs = reinterpret_cast<uint64_t*>(behind + RoundUp(ranks * sizeof(Member)));
  args->group.slots = shape.slots;
  args->group.slot_bytes = shape.slot_bytes;
  args->group.stage_bytes = RoundUp(2 * ranks_.spec().stage_bytes) / 2;
  args->group.connections_per_lane = static_cast<uint32_t>(ranks);
  args->group.epoch_lanes = ranks_.spec().lanes;
  args->failure.abort = health_.abort_word();
  args->group.rank = rank;
  args->group.ranks = static_cast<int32_t>(ranks);
  args->call.protocol = protocol;
  args->failure.spread_faults = true;
}

void Communicator::MarkPeerDead(int process) {
  const uint64_t end = ~uint64_t{0};  // later than any epoch, with the failure mark
  for (auto& [rank, here] : locals_) {
    for (int peer : ranks_.Members(rank)) {
      if (ranks_[peer].process != process) continue;
      for (uint32_t lane = 0; lane < ranks_.spec().lanes; ++lane) {
        char* barrier = here.arena + BarrierOffset(peer) + lane * sizeof(EpochBarrier);
        gpu_.memory.Copy(here.device, barrier + offsetof(EpochBarrier, end), &end, sizeof end);
      }
    }
  }
}

}  // namespace jaxring::cuda
