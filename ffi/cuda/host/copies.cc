#include "cuda/host/copies.h"

#include <algorithm>
#include <stdexcept>

namespace jaxring::cuda {
namespace {

constexpr uint64_t kAlignment = 256;

}  // namespace

Copies::Copies(Communicator& communicator, int rank, const std::vector<Move>& moves, std::vector<int> arrivals,
               uint64_t block_bytes, int in_blocks, int out_blocks)
    : streams_(communicator.gpu().streams),
      kernels_(communicator.gpu().kernels),
      device_(communicator.ranks().spec().ranks.at(rank).device),
      staging_(communicator.memory().StagingBuffer(rank, rank)),
      block_(block_bytes),
      slice_(std::min(block_bytes, communicator.memory().staging_bytes() / out_blocks / kAlignment * kAlignment)),
      arrivals_(std::move(arrivals)) {
  if (slice_ == 0 && block_ != 0) {
    throw std::invalid_argument("the staging buffer of " + std::to_string(communicator.memory().staging_bytes()) +
                                " bytes has no room for a slice of each block");
  }
  for (const Move& move : moves) {
    if (move.from >= in_blocks || move.to < 0 || move.to >= out_blocks || (move.from < 0 && move.peer != rank)) {
      throw std::invalid_argument("a copy names a block that is out of range");
    }
    if (move.peer == rank) {
      own_.push_back(move);
    } else {
      puts_.push_back({move.from, communicator.memory().StagingBuffer(rank, move.peer) + move.to * slice_});
    }
  }
  for (int block : arrivals_) {
    if (block < 0 || block >= out_blocks) throw std::invalid_argument("an arriving block is out of range");
  }
}

void Copies::Enqueue(const Args& barriers, const char* in, char* out, void* stream) const {
  for (uint64_t at = 0; at < block_; at += slice_) {
    const uint64_t bytes = std::min(slice_, block_ - at);
    kernels_.LaunchBarrier(device_, true, barriers, stream);
    // A trap before the last would keep later ones from telling the peers.
    Args closing = barriers;
    closing.failure.trap = barriers.failure.trap && bytes == block_ - at;
    for (const Put& put : puts_) streams_.CopyAsync(put.to, in + put.from * block_ + at, bytes, stream);
    kernels_.LaunchBarrier(device_, false, closing, stream);
    // Adjacent whole blocks are copied at once.
    const bool whole = slice_ == block_;
    for (size_t i = 0; i < arrivals_.size();) {
      size_t end = i + 1;
      while (whole && end < arrivals_.size() && arrivals_[end] == arrivals_[end - 1] + 1) ++end;
      streams_.CopyAsync(out + arrivals_[i] * block_ + at, staging_ + arrivals_[i] * slice_, bytes * (end - i), stream);
      i = end;
    }
  }
  // Last, since no other rank waits for these.
  for (const Move& move : own_) {
    if (move.from < 0) {
      streams_.ClearAsync(device_, out + move.to * block_, block_, stream);
    } else {
      streams_.CopyAsync(out + move.to * block_, in + move.from * block_, block_, stream);
    }
  }
}

}  // namespace jaxring::cuda
