// The arguments of send, recv and ragged_all_to_all besides Args, and their launches. Implemented in messages.cu; needs
// no CUDA header to include.
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

// One rank's half of a message between named ranks. The connections of Args carry the data. Their slots hold several
// whole messages of this shape, so a sender waits for room only if it is that many messages ahead. A queue of messages
// may have several shapes, each with its own connections. So before the data the sender sends a header that names the
// shape, over a connection that all shapes of the queue share (the header ring).
struct PointToPoint {
  Connection* header_ring;  // with the peer; nullptr if this rank neither sends nor receives
  uint64_t check;           // a hash of dtype and shape
  uint64_t slot_bytes;
  uint32_t slots;
  bool sends;
};

// Which numbers of ragged_all_to_all are wrong: stored in Status::step. Status::peer is the entry, Status::number its
// value, and Status::waited_ns the peer's value.
enum class Sizes : uint32_t { kGood = 0, kNegative = 1, kInput = 2, kOutput = 3, kDisagree = 4 };

// Vectors with one entry per rank of the group, in own memory: int64 where `wide` has the vector's bit, else int32.
// They count rows.
struct RaggedVectors {
  static constexpr int kInOffset = 0, kInSize = 1, kOutOffset = 2, kOutSize = 3, kPeerSize = 4, kCount = 5;
  const void* at[kCount];  // kOutSize: the rows that this rank expects; kPeerSize: the rows that the others send
  uint32_t wide;
};

struct Ragged {
  RaggedVectors vectors;
  uint64_t in_rows, out_rows;  // of the buffers
  uint64_t row_elements;
  uint64_t* extents;  // [4][chunks] and the longest: written by this launch, Args::extents of the next one
  uint32_t blocks, pieces;
};

// Words of Ragged::extents, and how they are named to Args.
constexpr uint64_t ExtentWords(uint64_t blocks, uint64_t pieces) { return 4 * blocks * pieces + 1; }
constexpr Extents ExtentsAt(const uint64_t* words, uint64_t blocks, uint64_t pieces) {
  const uint64_t chunks = blocks * pieces;
  return {words, words + chunks, words + 2 * chunks, words + 3 * chunks, words + 4 * chunks};
}

// As Launch, of kSimple.
int LaunchPointToPoint(const PointToPoint& message, const Args& args, int threads, void* stream);

// Checks the vectors and computes the extents from them, in one block. If a number is wrong, writes a fault to
// args.failure.status and makes all extents empty. Uses no other part of `args` than a fault report needs.
int LaunchExtents(const Ragged& ragged, const Args& args, void* stream);

// As LoadKernels, of these.
int LoadMessageKernels();

}  // namespace jaxring::cuda
