// One ordered group of ranks and the memory in which they meet on every rank's device: epoch barriers, stages,
// connections, counters. Python makes the same communicator in each process, once per group, and passes what `Offer...`
// returns from one rank to another. Plans share it.
//
// Its memory lives until the process ends, since captured graphs may use it at any time.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/gpu/gpu.h"
#include "cuda/host/group/group_health.h"
#include "cuda/host/group/group_memory.h"
#include "cuda/host/group/multicast_team.h"
#include "cuda/host/group/rank_group.h"
#include "cuda/host/memory/regions.h"
#include "cuda/host/network/proxy.h"

namespace jaxring::cuda {

class Communicator {
 public:
  // `proxy` may be nullptr where all ranks are in one domain.
  Communicator(Gpu& gpu, Regions& regions, Proxy* proxy, int process, CommunicatorSpec spec);
  ~Communicator();

  const RankGroup& ranks() const { return ranks_; }
  GroupHealth& health() { return health_; }
  const GroupHealth& health() const { return health_; }
  // What its plans use besides.
  GroupMemory& memory() { return memory_; }
  // Its ranks' multicast memory, if they set it up.
  MulticastTeam& multicast() { return multicast_; }
  Regions& regions() { return regions_; }
  Gpu& gpu() { return gpu_; }

  // Python sets it up rank by rank. First it offers every local rank's arena to the members of its domain and enters
  // theirs. Then it tests each pair: Probe writes to all members, and Verify, called after every member's Probe, checks
  // what they wrote. Both throw std::runtime_error, which names the pair and what to do.
  Location OfferArena(int rank);
  void EnterArena(int rank, int peer, Location theirs);
  void Probe(int rank);
  void Verify(int rank);

  // The connections of all lanes of two ranks under one protocol: OfferWire returns the memory in which `rank` receives
  // from `peer`, and ConnectWire takes the peer's offer. Later calls do nothing. Peers in other domains exchange no
  // memory: the proxy thread carries their messages.
  Location OfferWire(int rank, int peer, Protocol protocol);
  void ConnectWire(int rank, int peer, Protocol protocol, Location theirs);
  // Returns a description of what moves the bytes.
  std::string ConnectNetwork(int rank, int peer, Protocol protocol);
  bool Connected(int rank, int peer, Protocol protocol);
  // The connection of the first lane, on the rank's device.
  Connection* ConnectionOf(int rank, int peer, Protocol protocol) const;

  // Fills in the communicator's part of a launch's arguments.
  void Fill(int rank, Protocol protocol, bool members, Args* args) const;
  // A process is gone, and so are its kernels. Failed lanes of other ranks wait until their peers are done with their
  // buffers; this marks the process's ranks as done.
  void MarkPeerDead(int process);

 private:
  struct Wire {
    char* memory = nullptr;  // [lanes] slots, then [lanes] counters
    Location offered;
    bool connected = false;
  };
  struct Local {
    int device;
    char* arena;  // memory that peers write
    char* own;    // connections, members, epochs: only this rank writes them
    std::vector<Member> members;
    std::map<std::pair<int, int>, Wire> wires;  // (peer, protocol)
  };
  uint64_t BarrierOffset(int writer) const;
  uint64_t StageOffset(int writer) const;
  uint64_t ProbeOffset(int writer) const;
  uint64_t ArenaBytes() const;
  uint64_t OwnBytes() const;
  uint64_t ConnectionIndex(Protocol protocol, uint32_t lane, int peer) const;
  uint64_t Pattern(int writer, int reader) const;
  Local& At(int rank);
  const Local& At(int rank) const;

  Gpu& gpu_;
  Regions& regions_;
  Proxy* proxy_;
  const RankGroup ranks_;
  GroupHealth health_;
  GroupMemory memory_;
  MulticastTeam multicast_;
  std::map<int, Local> locals_;
};

}  // namespace jaxring::cuda
