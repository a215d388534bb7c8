// What send, recv and ragged_all_to_all take beyond Args, and their launches. Implemented in messages.cu; needs no CUDA
// header to include.
#pragma once

#include "cuda/device/tables.h"

namespace jaxring::cuda {

// One rank's half of a message between named ranks. The message's data goes by the connections of Args, whose slots
// hold several whole messages of this shape: a sender waits for room only where it is that far ahead. A queue of
// messages may hold several shapes, each with connections of its own, so before the data goes a note of what comes
// next, by a connection that all shapes of the queue share (the header ring).
struct Mail {
  Connection* header_ring;  // with the one peer; nullptr where this rank neither sends nor receives
  uint64_t check;           // stands for dtype and shape
  uint64_t slot_bytes;
  uint32_t slots;
  bool sends;
};

// Which of ragged_all_to_all's numbers are wrong: Status::step. Status::peer is the entry, and Status::number and
// Status::waited_ns are what it says and what the peer says.
enum class Sizes : uint32_t { kGood = 0, kNegative = 1, kInput = 2, kOutput = 3, kDisagree = 4 };

// Vectors with one entry per rank of the group, in own memory: int64 where `wide` has the vector's bit, else int32.
// They count rows.
struct RaggedVectors {
  static constexpr int kInOffset = 0, kInSize = 1, kOutOffset = 2, kOutSize = 3, kPeerSize = 4, kCount = 5;
  const void* at[kCount];  // kOutSize: what this rank says will come; kPeerSize: what the others say they send
  uint32_t wide;
};

struct Ragged {
  RaggedVectors vectors;
  uint64_t in_rows, out_rows;  // of the buffers
  uint64_t row_elements;
  uint64_t* extents;  // [4][chunks] and the longest: written by the launch, Args::extents of the one behind it
  uint32_t blocks, pieces;
};

// Words of Ragged::extents, and how they are named to Args.
constexpr uint64_t ExtentWords(uint64_t blocks, uint64_t pieces) { return 4 * blocks * pieces + 1; }
constexpr Extents ExtentsAt(const uint64_t* words, uint64_t blocks, uint64_t pieces) {
  const uint64_t chunks = blocks * pieces;
  return {words, words + chunks, words + 2 * chunks, words + 3 * chunks, words + 4 * chunks};
}

// As Launch, of kSimple.
int LaunchMail(const Mail& mail, const Args& args, int threads, void* stream);

// Checks the vectors and makes extents of them, in one block. What is wrong goes to args.status, and then every extent
// is empty. Nothing else of `args` is looked at but what a fault takes.
int LaunchExtents(const Ragged& ragged, const Args& args, void* stream);

// As LoadKernels, of these.
int LoadMessageKernels();

}  // namespace jaxring::cuda
