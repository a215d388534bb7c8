// A plan of the CUDA engine: a schedule bound to dtype, size and communicator, with its tables on every local rank's
// device. Python makes it once per call site and group. Nothing in it changes except which buffers the peers are known
// to have mapped.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "cuda/host/copies.h"
#include "cuda/host/group/communicator.h"
#include "cuda/host/ranges.h"
#include "engine/operation/operation.h"
#include "plan/plan.h"

namespace jaxring::cuda {

struct LaunchPlanSpec {
  // What it computes.
  struct Data {
    DType dtype{};
    ReduceOp op{};
    bool reduces = false;
    uint64_t divisor = 0;
    int root = 0;
  };

  struct Shape {
    uint64_t block_elements = 0;
    int in_blocks = 1, out_blocks = 1, pieces = 1, scratch_chunks = 0, nlanes = 1;
    // If set, each launch passes offsets and sizes in rows of that many elements, and blocks have any length;
    // block_elements then only determines the slice size.
    std::optional<uint64_t> ragged_row;
  };

  struct Kernel {
    Protocol protocol = Protocol::kSimple;
    std::optional<Fused> fused;              // instead of a step table
    std::optional<MulticastKind> multicast;  // instead of a step table, through the ranks' multicast memory
    int threads = 256;
    // Slices of at least that many bytes that are not reduced go by bulk copies if the device has them. 0: no bulk
    // copies.
    uint64_t bulk_bytes = 0;
  };

  // One half of a message between named ranks.
  struct Message {
    Half half = Half::kBoth;
    // A communicator of one lane that all message shapes of a queue share; the plan's own communicator carries the data
    // of this shape.
    std::shared_ptr<Communicator> header_ring;
    uint64_t check = 0;  // a hash of dtype and shape
  };

  std::string what;   // "all_reduce sum float32[1024] over 'data' at train.py:31", for messages
  std::string range;  // "all_reduce sum 4096B over data: ring/ll", for profilers; `what` if empty
  Data data;
  Shape shape;
  Kernel kernel;
  Message message;
  std::shared_ptr<const PlanEpilogue> epilogue;  // what the table's steps with StepFlag::kEpilogue apply; or null
  double timeout_s = 300;
  uint32_t call = 0;  // Args::Call::number
  // On an error the kernel traps, which ends the device's context, so that no later operation sees incomplete data. See
  // docs/cuda-host.md.
  bool trap = true;
  // Peers in other processes read and write the buffers in place if they can be exported.
  bool zero_copy = true;
};

class LaunchPlan {
 public:
  LaunchPlan(std::shared_ptr<Communicator> communicator, LaunchPlanSpec spec);
  ~LaunchPlan();
  LaunchPlan(const LaunchPlan&) = delete;

  // Adds one local rank's table; flows are ignored. `members`: ranks of its domain address each other's memory. Throws
  // std::invalid_argument for a table that does not fit.
  void AddLocal(const RankTable& table, bool members);

  // After AddLocal with a table of one lane without steps: copies the rank's bytes according to `moves`. `arrivals` are
  // the blocks of its output that others send. Throws std::invalid_argument for blocks that do not exist.
  void SetMoves(int rank, const std::vector<Move>& moves, std::vector<int> arrivals);

  // Enqueues one rank's part. It never waits, neither for other ranks' kernels nor for other processes: as long as
  // these have not mapped a buffer, its data is copied to and from a replacement (Communicator::OfferReplacement,
  // before AddLocal). `vectors`: of a ragged collective, and `epilogue`: of a plan with an epilogue, else nullptr.
  jaxring::Status Launch(int rank, const void* in, void* out, uint64_t in_bytes, uint64_t out_bytes, void* stream,
                         const RaggedVectors* vectors = nullptr, const EpilogueBuffers* epilogue = nullptr);

  Communicator& communicator() { return *communicator_; }
  const LaunchPlanSpec& spec() const { return spec_; }
  uint64_t in_bytes() const {
    return spec_.shape.in_blocks * spec_.shape.block_elements * ElementBytes(spec_.data.dtype);
  }
  uint64_t out_bytes() const { return spec_.shape.out_blocks * spec_.shape.block_elements * result_bytes(); }
  uint64_t staged_launches() const { return staged_; }

  // Ends running launches and refuses later ones, on the plan's communicators.
  void Break(const std::string& why);
  // The description of the first fault of any local rank, or "". For the monitor thread. `causes_only`: not of a fault
  // that follows another's.
  std::string Fault(bool causes_only = false) const;

 private:
  struct Local {
    Args args;                    // without the buffers
    PointToPoint point_to_point;  // if the plan is one half of a message
    uint64_t* extents;
    Status* status;
    bool members;                        // whether other ranks address its buffers
    std::map<uint64_t, uint32_t> known;  // allocation id -> region, where all of the domain address it; under mutex_
    std::vector<int> others;             // devices of this process that address the buffers
    const GroupMemory::Replacement* replace_in;  // nullptr if there is none
    const GroupMemory::Replacement* replace_out;
    std::optional<Copies> copies;        // instead of a kernel
    std::optional<Multicast> multicast;  // the multicast memory of such a kernel
  };
  // Bytes of an element of the output.
  uint64_t result_bytes() const {
    return spec_.epilogue ? spec_.epilogue->result->element_bytes : ElementBytes(spec_.data.dtype);
  }
  // A local rank, or nullptr. The entry does not move, and one rank's launches come one after another.
  Local* Find(int rank);
  void AddPointToPoint(Local& local, const RankTable& table) const;
  void Enqueue(Local& local, int rank, const Args& args, const RaggedVectors* vectors, const EpilogueBuffers* epilogue,
               uint64_t in_bytes, uint64_t out_bytes, void* stream) const;
  bool Addressed(const Local& local) const;
  void Place(Local& local, int rank, const void* in, void* out, Args* args);
  bool Reached(const Local& local, const void* pointer);
  bool Locate(Local& local, const void* pointer, uint64_t bytes, uint64_t* region, uint64_t* offset);

  std::shared_ptr<Communicator> communicator_;
  LaunchPlanSpec spec_;
  RangeName range_;
  uint64_t slice_, tile_;
  uint32_t widening_;
  mutable Mutex mutex_;
  std::map<int, Local> locals_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<uint64_t> staged_{0};
};

}  // namespace jaxring::cuda
