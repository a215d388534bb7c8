// Multicast memory of a communicator's ranks, which have a GPU each and are in one domain. Rank 0's process makes the
// object, and every other process fetches its descriptor from there; then each rank adds its GPU, binds memory to it,
// and maps what all have bound; then each stores through the switch to all, and finds what they stored, and what the
// switch makes of a part of each. A step is taken when all ranks are through the one before: Python sees to it, as to
// the communicator's other offers.
//
// What is made here stays until the process ends, or goes when setting it up fails.
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
  // All outlive it.
  MulticastTeam(Gpu& gpu, Regions& regions, const CommunicatorSpec& spec) : gpu_(gpu), regions_(regions), spec_(spec) {}

  // Each throws std::runtime_error that names the rank, the step and the way out. Done again they do nothing.
  //
  // By rank 0: where processes find the object, and its bytes.
  Location Offer(uint64_t bytes);
  void Join(int rank, Location object);
  void Bind(int rank);
  void Map(int rank);
  // Every rank's Probe comes before any rank's Verify, and every Verify before the first collective.
  void Probe(int rank);
  void Verify(int rank);

  // Throws std::invalid_argument where it was not mapped.
  Multicast At(int rank, MulticastKind kind) const;

 private:
  struct Place {
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
  std::map<int, Place> places_;
};

}  // namespace jaxring::cuda
