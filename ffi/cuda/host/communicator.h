// One ordered group of ranks and the memory that it needs on every rank's device: epoch barriers, stages, connections,
// counters. Python makes the same communicator in each process, once per group, and passes what `Offer...` returns from
// one rank to another. Plans share it.
//
// Its memory lives until the process ends, since captured graphs may use it at any time.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/regions.h"
#include "cuda/host/multicast_team.h"
#include "cuda/host/network/proxy.h"

namespace jaxring::cuda {

inline constexpr int kProtocols = 3;

struct RankInfo {
  int process;
  int device;        // the number of its device in this process; -1: the rank is in another process
  int domain;        // ranks of one domain address each other's memory
  std::string name;  // "rank 3 (process 1 on host b, GPU 0)", for messages
};

struct WireShape {
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
};

// Equal in all processes except for RankInfo::device.
struct CommunicatorSpec {
  std::string name;
  std::vector<RankInfo> ranks;
  uint32_t lanes = 1;  // the most that any of its plans has
  std::array<WireShape, kProtocols> wires;
  uint64_t stage_bytes = 0;
  double timeout_s = 300;  // for setting it up
};

class Communicator {
 public:
  // `proxy` may be nullptr where all ranks are in one domain.
  Communicator(Gpu& gpu, Regions& regions, Proxy* proxy, int process, CommunicatorSpec spec);
  ~Communicator();

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

  // The staging buffers, into which members of the rank's domain copy: `bytes` each, the same on all ranks and at every
  // call.
  Location OfferStaging(int rank, uint64_t bytes);
  void EnterStaging(int rank, int peer, Location theirs);
  // The staging buffer of a member as `rank` addresses it, or its own. Throws std::invalid_argument if it was not
  // entered.
  char* StagingBuffer(int rank, int peer);
  uint64_t staging_bytes() const { return staging_bytes_; }

  // Its ranks' multicast memory, if they set it up.
  MulticastTeam& multicast() { return multicast_; }

  const CommunicatorSpec& spec() const { return spec_; }
  bool local(int rank) const { return spec_.ranks[rank].process == process_; }
  bool one_process() const { return processes_.empty(); }
  const std::set<int>& processes() const { return processes_; }  // other processes that share memory with this one
  const std::set<int>& peers() const { return peers_; }          // all other processes
  // The key under which processes report its failure to each other; its messages have other keys.
  uint64_t key() const { return ~hash_; }
  std::vector<int> Members(int rank) const;
  // The other devices of this process whose kernels address the rank's buffers.
  std::vector<int> OtherDevices(int rank) const;

  // For planning threads: has the domain's other processes map a rank's buffers, and waits for them, or lets this
  // process's other devices address them. Returns "" if they are addressed as they are, "shared by file descriptor",
  // "shared by CUDA IPC", "granted ...", or "staged: " and why.
  std::string ShareBuffers(int rank, const void* in, uint64_t in_bytes, const void* out, uint64_t out_bytes);

  // Fills in the communicator's part of a launch's arguments.
  void Fill(int rank, Protocol protocol, bool members, Args* args) const;
  // Own memory of at least that many bytes for the schedules' scratch chunks.
  char* Scratch(int rank, uint64_t bytes);

  // Memory that takes the place of a rank's input or output in launches whose own buffer the peers have not mapped
  // (yet). Made, shared and mapped by all before any rank of a plan has the plan: launches do not wait for that. Offer
  // throws std::runtime_error; Find returns nullptr where none of that size was offered.
  struct Replacement {
    uint64_t bytes;
    char* memory;
    Location location;
  };
  enum class Role { kInput = 0, kOutput = 1 };
  void OfferReplacement(int rank, Role role, uint64_t bytes);
  const Replacement* FindReplacement(int rank, Role role, uint64_t bytes) const;

  // Break records why the communicator cannot be used any more and sets the abort word, which ends its running
  // launches. Only the first reason counts.
  void Break(const std::string& why);
  bool Broken(std::string* why) const;
  // Describes a message that arrived damaged, or returns "". Nothing more arrives at that rank from that peer.
  std::string Damage() const;
  // A process is gone, and so are its kernels. Failed lanes of other ranks wait until their peers are done with their
  // buffers; this marks the process's ranks as done.
  void MarkPeerDead(int process);
  // Remembers what the call of a number (Args::call) is. Described finds it by the number's low half; "" if there is
  // none.
  void Describe(uint32_t call, const std::string& what);
  std::string Described(uint64_t call) const;
  // A record for a plan's launches on one rank. Pinned memory comes in whole pages, so that plans share them.
  Status* NewStatus();
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
    char* arena;  // memory that peers write
    char* own;    // connections, members, epochs: only this rank writes them
    std::vector<Member> members;
    std::map<std::pair<int, int>, Wire> wires;  // (peer, protocol)
    std::vector<std::pair<uint64_t, char*>> scratch;
    std::array<std::deque<Replacement>, 2> replacements;  // by role; plans keep pointers to them
    std::map<int, char*> staging_buffers;                 // by owner
  };
  uint64_t BarrierOffset(int writer) const;
  uint64_t StageOffset(int writer) const;
  uint64_t ProbeOffset(int writer) const;
  uint64_t ArenaBytes() const;
  uint64_t OwnBytes() const;
  char* NewMemory(int device, uint64_t bytes);  // memory that can be shared with the domain's other ranks
  uint64_t ConnectionIndex(Protocol protocol, uint32_t lane, int peer) const;
  uint64_t Pattern(int writer, int reader) const;
  Location Offer(int rank, const char* memory, uint64_t bytes);
  std::string GrantBuffers(int rank, const void* in, uint64_t in_bytes, const void* out, uint64_t out_bytes);
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
  mutable Mutex mutex_;
  std::string broken_ JAXRING_GUARDED_BY(mutex_);
  std::string damage_ JAXRING_GUARDED_BY(mutex_);
  std::map<uint16_t, std::string> calls_ JAXRING_GUARDED_BY(mutex_);
  char* statuses_ JAXRING_GUARDED_BY(mutex_) = nullptr;  // the free part of a page
  uint64_t statuses_left_ JAXRING_GUARDED_BY(mutex_) = 0;
};

}  // namespace jaxring::cuda
