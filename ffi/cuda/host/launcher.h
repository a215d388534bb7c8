// A plan of the CUDA engine: a schedule bound to dtype, size and communicator, with its tables on every local rank's
// device, ready to be launched. Python makes it once per call site and group; nothing in it changes but which buffers
// are known to the peers.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/host/communicator.h"
#include "cuda/host/copies.h"
#include "cuda/host/ranges.h"
#include "plan/plan.h"

namespace jaxring::cuda {

struct LaunchPlanSpec {
  std::string what;   // "all_reduce sum float32[1024] over 'data' at train.py:31", for messages
  std::string range;  // "all_reduce sum 4096B over data: ring/ll", for profilers; `what` if empty
  DType dtype{};
  ReduceOp op{};
  bool reduces = false;
  uint64_t divisor = 0;
  uint64_t block_elements = 0;
  int in_blocks = 1, out_blocks = 1, pieces = 1, scratch_chunks = 0, nlanes = 1;
  int root = 0;
  Protocol protocol = Protocol::kSimple;
  std::optional<Fused> fused;              // instead of a step table
  std::optional<MulticastKind> multicast;  // the same, through the ranks' multicast memory
  // One half of a message between named ranks: the header ring is a communicator of one lane that all shapes of a queue
  // of messages share; this plan's own has a queue of this shape. `check` stands for dtype and shape.
  Half half = Half::kBoth;
  std::shared_ptr<Communicator> header_ring;
  uint64_t check = 0;
  // Set: offsets and sizes come with each launch, in rows of so many elements, and blocks are of any length;
  // block_elements is only what slices are cut for.
  std::optional<uint64_t> ragged_row;
  int threads = 256;
  // Slices that only move, of so many bytes at least, go by bulk copies where the device has them; 0: none do.
  uint64_t bulk_bytes = 0;
  double timeout_s = 300;
  // Trap: an error ends the device's context, so no later operation sees incomplete data. See docs/cuda-host.md.
  bool trap = true;
  // Buffers are read and written by peers in other processes where they lie, if they can be exported.
  bool zero_copy = true;
};

class LaunchPlan {
 public:
  LaunchPlan(std::shared_ptr<Communicator> communicator, LaunchPlanSpec spec);
  ~LaunchPlan();
  LaunchPlan(const LaunchPlan&) = delete;

  // One local rank's table; its flows are not looked at. `members`: ranks of its domain address memory, maybe its own.
  // Throws std::invalid_argument for a table that does not fit.
  void AddLocal(const RankTable& table, bool members);

  // After AddLocal with a table of one lane without steps: the rank's bytes are copied as these moves say, and
  // `arrivals` are the blocks of its output that others send. Throws std::invalid_argument for what does not fit.
  void SetMoves(int rank, const std::vector<Move>& moves, std::vector<int> arrivals);

  // Enqueues one rank's part. Never waits for other ranks' kernels; the first launch with an allocation that other
  // processes do not know waits until they have mapped it. `vectors`: of a ragged collective, else nullptr.
  jaxring::Status Launch(int rank, const void* in, void* out, uint64_t in_bytes, uint64_t out_bytes, void* stream,
                         const RaggedVectors* vectors = nullptr);

  Communicator& communicator() { return *communicator_; }
  const LaunchPlanSpec& spec() const { return spec_; }
  uint64_t in_bytes() const { return spec_.in_blocks * spec_.block_elements * ElementBytes(spec_.dtype); }
  uint64_t out_bytes() const { return spec_.out_blocks * spec_.block_elements * ElementBytes(spec_.dtype); }
  uint64_t staged_launches() const { return staged_; }

  // Ends what runs and refuses what comes, on the plan's communicators.
  void Break(const std::string& why);
  // The first fault of any local rank as a sentence, or an empty text. For the watcher.
  std::string Fault() const;

 private:
  struct Local {
    Args args;  // all but the buffers
    Mail mail;  // of a half
    uint64_t* extents;
    Status* status;
    bool members;                        // its buffers are addressed by others
    std::map<uint64_t, uint64_t> known;  // allocation id -> region that all of the domain know; 0: not shared
    std::optional<Copies> copies;        // instead of a kernel
    std::optional<Multicast> multicast;  // what such a kernel goes through
  };
  void AddMail(Local& local, const RankTable& table) const;
  void Enqueue(Local& local, int rank, const Args& args, const RaggedVectors* vectors, uint64_t in_bytes,
               uint64_t out_bytes, void* stream) const;
  void Place(Local& local, int rank, const void* in, void* out, void* stream, Args* args, bool* staged);
  bool Locate(Local& local, const void* pointer, uint64_t bytes, uint64_t* region, uint64_t* offset);

  std::shared_ptr<Communicator> communicator_;
  LaunchPlanSpec spec_;
  RangeName range_;
  uint64_t slice_, tile_;
  uint32_t widening_;
  std::mutex mutex_;
  std::map<int, Local> locals_;
  std::atomic<uint64_t> staged_{0};
};

}  // namespace jaxring::cuda
