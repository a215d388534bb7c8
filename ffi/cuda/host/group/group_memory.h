// The memory of a communicator's local ranks that its plans use: scratch, staging buffers, replacements for buffers
// that peers have not mapped, records of launches; and how memory is shared among its ranks.
//
// It lives until the process ends, since captured graphs may use it at any time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cuda/device/tables.h"
#include "cuda/host/gpu/gpu_memory.h"
#include "cuda/host/group/group_health.h"
#include "cuda/host/group/rank_group.h"
#include "cuda/host/memory/regions.h"

namespace jaxring::cuda {

class GroupMemory {
 public:
  // All must outlive this.
  GroupMemory(GpuMemory& memory, Regions& regions, const RankGroup& ranks, const GroupHealth& health)
      : memory_(memory), regions_(regions), ranks_(ranks), health_(health) {}

  // Memory on a rank's device that can be shared with its domain's other ranks.
  char* New(int rank, uint64_t bytes);
  // Offer has the domain's other processes map memory of a rank and returns where they find it; Resolve is where `rank`
  // finds what `peer` has offered. Both throw std::runtime_error.
  Location Offer(int rank, const char* memory, uint64_t bytes);
  char* Resolve(int rank, int peer, Location theirs);

  // The staging buffers, into which members of the rank's domain copy: `bytes` each, the same on all ranks and at every
  // call.
  Location OfferStaging(int rank, uint64_t bytes);
  void EnterStaging(int rank, int peer, Location theirs);
  // The staging buffer of a member as `rank` addresses it, or its own. Throws std::invalid_argument if it was not
  // entered.
  char* StagingBuffer(int rank, int peer) const;
  uint64_t staging_bytes() const { return staging_bytes_; }

  // For planning threads: lets this process's other devices address a rank's buffers, has the domain's other processes
  // map them, and waits for these. Returns "" if they are addressed as they are, "shared by file descriptor", "shared
  // by CUDA IPC", "granted ...", one of these two and the last, or "staged: " and why.
  std::string ShareBuffers(int rank, const void* in, uint64_t in_bytes, const void* out, uint64_t out_bytes);

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

  // A record for a plan's launches on one rank. Pinned memory comes in whole pages, so that plans share them.
  Status* NewStatus();

 private:
  struct Local {
    std::vector<std::pair<uint64_t, char*>> scratch;
    std::array<std::deque<Replacement>, 2> replacements;  // by role; plans keep pointers to them
  };
  std::string GrantBuffers(int rank, const void* in, uint64_t in_bytes, const void* out, uint64_t out_bytes);

  GpuMemory& memory_;
  Regions& regions_;
  const RankGroup& ranks_;
  const GroupHealth& health_;
  std::map<std::pair<int, int>, char*> staging_buffers_;  // by rank and owner; one planning thread at a time uses them
  uint64_t staging_bytes_ = 0;
  mutable Mutex mutex_;
  std::map<int, Local> locals_ JAXRING_GUARDED_BY(mutex_);  // by rank
  char* statuses_ JAXRING_GUARDED_BY(mutex_) = nullptr;     // the free part of a page
  uint64_t statuses_left_ JAXRING_GUARDED_BY(mutex_) = 0;
};

}  // namespace jaxring::cuda
