// Multicast memory of a communicator's ranks, which have a GPU each and are in one domain. Rank 0's process makes the
// object, and every other process fetches its descriptor. Then each rank adds its GPU, binds memory, and maps the
// memory of all. To test it, each rank stores to all through the switch, checks what the others stored, and checks a
// sum that the switch computes. Python lets all ranks finish a step before any rank begins the next.
//
// The memory lives until the process ends, or until setting it up fails.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "cuda/host/gpu/gpu.h"
#include "cuda/host/memory/regions.h"

namespace jaxring::cuda {

struct CommunicatorSpec;

class MulticastTeam {
 public:
  // The arguments must outlive it.
  MulticastTeam(Gpu& gpu, Regions& regions, const CommunicatorSpec& spec) : gpu_(gpu), regions_(regions), spec_(spec) {}

  // Each throws std::runtime_error, which names the rank, the step and what to do. Later calls do nothing.
  //
  // Called for rank 0: returns where the other processes find the object.
  Location Offer(uint64_t bytes);
  void Join(int rank, Location object);
  void Bind(int rank);
  void Map(int rank);
  // Every rank's Probe comes before any rank's Verify, and every Verify before the first collective.
  void Probe(int rank);
  void Verify(int rank);

  // Throws std::invalid_argument if it was not mapped.
  Multicast At(int rank, MulticastKind kind) const;

 private:
  struct RankMemory {
    bool added = false;
    char *own = nullptr, *all = nullptr;
  };
  void Step(int rank, const char* what, const std::function<void()>& take);
  void Try(int rank, MulticastKind kind);

  Gpu& gpu_;
  Regions& regions_;
  const CommunicatorSpec& spec_;
  std::shared_ptr<MulticastObject> object_;
  Location offered_;
  std::map<int, RankMemory> memories_;
};

}  // namespace jaxring::cuda
