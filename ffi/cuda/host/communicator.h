// One ordered group of ranks and what it needs on every rank's device: barriers, stages, connections, counters. Python
// makes the same communicator in each process, once per group, and carries what `Offer...` returns from one rank to
// another; plans then share it.
//
// Its memory lives until the process ends: launches in graphs may name it at any time.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/regions.h"
#include "cuda/host/multicast_team.h"
#include "cuda/host/network/proxy.h"

namespace jaxring::cuda {

inline constexpr int kProtocols = 3;

struct RankInfo {
  int process;
  int device;        // its number in this process; -1: another process's
  int domain;        // ranks of one domain address each other's memory
  std::string name;  // "rank 3 (process 1 on host b, GPU 0)", for messages
};

struct WireShape {
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
};

// Equal in all processes but for RankInfo::device.
struct CommunicatorSpec {
  std::string name;
  std::vector<RankInfo> ranks;
  uint32_t lanes = 1;  // of any of its plans, at most
  std::array<WireShape, kProtocols> wires;
  uint64_t stage_bytes = 0;
  double timeout_s = 300;  // of setting it up
};

class Communicator {
 public:
  // `proxy` may be nullptr where all ranks are in one domain.
  Communicator(Gpu& gpu, Regions& regions, Proxy* proxy, int process, CommunicatorSpec spec);
  ~Communicator();

  // Setting up, by Python, rank by rank. First every local rank's arena is offered to the members of its domain, and
  // theirs are entered; then each pair is tried out: Probe writes to all members, and Verify, which comes after every
  // member's Probe, finds what they wrote. Verify and Probe throw std::runtime_error naming the pair and what mends it.
  Location OfferArena(int rank);
  void EnterArena(int rank, int peer, Location theirs);
  void Probe(int rank);
  void Verify(int rank);

  // Connections of all lanes of two ranks under one protocol: the memory where `rank` receives from `peer`, and the
  // peer's own offer. Called again they do nothing. Peers of other domains need no exchange: they go by the proxy.
  Location OfferWire(int rank, int peer, Protocol protocol);
  void ConnectWire(int rank, int peer, Protocol protocol, Location theirs);
  // Returns in words who moves the bytes.
  std::string ConnectNetwork(int rank, int peer, Protocol protocol);
  bool Connected(int rank, int peer, Protocol protocol);
  // The first lane's, on the rank's device.
  Connection* ConnectionOf(int rank, int peer, Protocol protocol) const;

  // Where copies of the members of its domain land: `bytes` each, the same on all ranks and at every call.
  Location OfferStaging(int rank, uint64_t bytes);
  void EnterStaging(int rank, int peer, Location theirs);
  // The staging buffer of a member as `rank` writes it, or its own. Throws std::invalid_argument where it was not
  // entered.
  char* StagingBuffer(int rank, int peer);
  uint64_t staging_bytes() const { return staging_bytes_; }

  // Its ranks' multicast memory, if they set it up.
  MulticastTeam& multicast() { return multicast_; }

  const CommunicatorSpec& spec() const { return spec_; }
  bool local(int rank) const { return spec_.ranks[rank].process == process_; }
  bool one_process() const { return processes_.empty(); }
  const std::set<int>& processes() const { return processes_; }  // others that share memory with this one
  const std::set<int>& peers() const { return peers_; }          // all other processes
  // Under which processes tell each other that it has failed; its messages have others.
  uint64_t key() const { return ~hash_; }
  std::vector<int> Members(int rank) const;

  // Fills what belongs to the communicator in a launch's arguments; buffers as Locate says.
  void Fill(int rank, Protocol protocol, bool members, Args* args) const;
  // Own memory of at least so many bytes, by purpose: 0 scratch, 1 and 2 stand-ins for input and output.
  char* Buffer(int rank, int purpose, uint64_t bytes);

  // The first reason for which it is of no more use, if any; sets the abort word that ends its running launches.
  void Break(const std::string& why);
  bool Broken(std::string* why) const;
  // What came to one of its ranks damaged, or nothing. Nothing more arrives at that rank from that peer.
  std::string Damage() const;
  // A process is gone, and its kernels with it. Lanes that failed stay until their peers are done with their buffers:
  // its ranks are.
  void MarkPeerDead(int process);
  Regions& regions() { return regions_; }
  Gpu& gpu() { return gpu_; }

 private:
  struct Wire {
    char* memory = nullptr;  // [lanes] slots, then [lanes] counters
    Location offered;
    bool connected = false;
  };
  struct Local {
    int device;
    char* arena;  // peers write here
    char* own;    // connections, members, epochs
    std::vector<Member> members;
    std::map<std::pair<int, int>, Wire> wires;  // (peer, protocol)
    std::map<int, std::vector<std::pair<uint64_t, char*>>> buffers;
    std::map<int, char*> staging_buffers;  // by owner
  };
  uint64_t BarrierOffset(int writer) const;
  uint64_t StageOffset(int writer) const;
  uint64_t ProbeOffset(int writer) const;
  uint64_t ArenaBytes() const;
  uint64_t OwnBytes() const;
  char* NewMemory(int device, uint64_t bytes);  // for the domain's other ranks too
  uint64_t ConnectionIndex(Protocol protocol, uint32_t lane, int peer) const;
  uint64_t Pattern(int writer, int reader) const;
  Location Offer(int rank, const char* memory, uint64_t bytes);
  Local& At(int rank);
  const Local& At(int rank) const;

  Gpu& gpu_;
  Regions& regions_;
  Proxy* proxy_;
  int process_;
  CommunicatorSpec spec_;
  MulticastTeam multicast_;
  uint64_t hash_;
  std::set<int> processes_, peers_;
  std::map<int, Local> locals_;
  uint64_t staging_bytes_ = 0;
  uint32_t* abort_ = nullptr;
  mutable std::mutex mutex_;
  std::string broken_, damage_;
};

}  // namespace jaxring::cuda
