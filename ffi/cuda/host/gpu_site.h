// A call site of the CUDA engine: one custom call of one compiled program, as the CPU engine's Site. Each device's part
// is enqueued by itself when its program reaches the call. Ranks synchronise on their devices, not here.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/condition_variable.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cuda/host/launcher.h"

namespace jaxring::cuda {

class Runtime;

struct SiteSpec {
  std::string spec;             // JSON that only the planner reads
  std::vector<int32_t> groups;  // partition ids, group after group
  int group_size = 1;
  double timeout_s = 300;
  uint64_t ordinal = 0;  // how many sites with the same spec were made before this one
};

class Site : public std::enable_shared_from_this<Site> {
 public:
  Site(Runtime* runtime, SiteSpec spec) : runtime_(runtime), spec_(std::move(spec)) {
    for (size_t i = 0; i < spec_.groups.size(); ++i) {
      place_[spec_.groups[i]] = {static_cast<int>(i) / spec_.group_size, static_cast<int>(i) % spec_.group_size};
    }
    groups_.resize(spec_.groups.size() / spec_.group_size);
  }

  // Enqueues the part of the rank on `device`. `partition` is the partition id's operand on the device. It is read once
  // per device, unless the stream is being captured into a graph; then the planner must know it. The first call waits
  // for a plan, at most timeout_s. `vectors`: of a ragged collective, and `epilogue`: of a call with an epilogue, else
  // nullptr. `on_side_stream`: runs on the device's side stream, until SideStreams::Join of `out`.
  jaxring::Status Run(int device, const void* partition, const void* in, void* out, uint64_t in_bytes,
                      uint64_t out_bytes, void* stream, const RaggedVectors* vectors = nullptr,
                      const EpilogueBuffers* epilogue = nullptr, bool on_side_stream = false);

  const SiteSpec& spec() const { return spec_; }
  std::vector<int32_t> GroupPartitions(int group) const;
  // The device of each rank of this process that has called so far.
  std::map<int, int> Arrived(int group);
  // Has the peers map the buffers of this process's ranks that have called so far, before any of them gets its plan.
  // Returns how each rank's are shared: Communicator::ShareBuffers.
  std::map<int, std::string> ShareBuffers(int group, Communicator& communicator);
  void Resolve(int group, std::shared_ptr<LaunchPlan> plan);
  void Reject(int group, jaxring::Status status);
  void Identify(int device, int partition, jaxring::Status status);

 private:
  struct Buffers {
    const void *in, *out;
    uint64_t in_bytes, out_bytes;
  };
  struct Group {
    bool asked = false;
    std::shared_ptr<LaunchPlan> plan;
    uint64_t rejections = 0;
    jaxring::Status rejection;
    std::map<int, int> devices;      // rank -> device
    std::map<int, Buffers> buffers;  // of each rank's first call
  };
  jaxring::Status RunOnSideStream(LaunchPlan& plan, int rank, int device, const void* in, void* out, uint64_t in_bytes,
                                  uint64_t out_bytes, void* stream, const EpilogueBuffers* epilogue);
  jaxring::Status Partition(int device, const void* partition, void* stream, int* found);

  Runtime* runtime_;
  SiteSpec spec_;
  std::map<int32_t, std::pair<int, int>> place_;  // partition -> (group, rank)
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<Group> groups_ JAXRING_GUARDED_BY(mutex_);
  std::map<int, int> partitions_ JAXRING_GUARDED_BY(mutex_);  // by device
  std::map<int, jaxring::Status> unidentified_ JAXRING_GUARDED_BY(mutex_);
};

// A site's request to Python: a plan for a group, or, with group -1, the partition id of a device.
struct Request {
  std::shared_ptr<Site> site;
  int group = -1;
  int device = -1;
};

}  // namespace jaxring::cuda
