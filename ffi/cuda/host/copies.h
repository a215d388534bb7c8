// A collective without a reduction, run by the GPUs' copy engines: it uses multiprocessors for its barriers only.
//
// A copy's command holds addresses, but the addresses of a peer's XLA buffers are exchanged by kernels. So a rank puts
// its blocks into the peers' staging buffers, which are memory of the communicator, and each peer copies them into its
// output. If an output is larger than the staging buffer, blocks are copied slice by slice. The opening barrier of a
// slice means that the staging buffer is free (its owner's stream has copied the slice before it), the closing one that
// the whole slice has arrived.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/host/group/communicator.h"

namespace jaxring::cuda {

// The copy of one block of a rank's input to a rank of its domain, which may be itself. from < 0: zeros, for itself.
struct Move {
  int from = 0;
  int peer = 0;
  int to = 0;
};

class Copies {
 public:
  // `moves` are the rank's own; `arrivals` the blocks of its output that others send. Throws std::invalid_argument for
  // blocks that do not exist, and for a peer whose staging buffer was not entered.
  Copies(Communicator& communicator, int rank, const std::vector<Move>& moves, std::vector<int> arrivals,
         uint64_t block_bytes, int in_blocks, int out_blocks);

  // `barriers`: the launch arguments of the barrier kernels. Only copies and barriers are enqueued.
  void Enqueue(const Args& barriers, const char* in, char* out, void* stream) const;
  uint64_t slice_bytes() const { return slice_; }

 private:
  struct Put {
    int from;
    char* to;  // the block in the peer's staging buffer
  };
  GpuStreams& streams_;
  GpuKernels& kernels_;
  int device_;
  const char* staging_;
  uint64_t block_, slice_;
  std::vector<Put> puts_;
  std::vector<Move> own_;
  std::vector<int> arrivals_;
};

}  // namespace jaxring::cuda
