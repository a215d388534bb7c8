// Checks the sizes of ragged_all_to_all and divides the blocks into chunks on the device, where the sizes are, so that
// the host need not wait for them. See Ragged.
#pragma once

#include "cuda/device/device.h"
#include "cuda/kernels/messages.h"

namespace jaxring::cuda {

struct RaggedShared {
  uint64_t longest[kMaxThreads];
};

class RaggedCutter {
 public:
  JAXRING_DEVICE RaggedCutter(const Ragged& ragged, const Args& args) : ragged_(ragged), args_(args) {}

  JAXRING_DEVICE void Cut(RaggedShared& shared) const {
    bool bad = false;
    for (uint32_t i = ThreadIndex(); i < ragged_.blocks; i += Threads()) bad |= !Check(i);
    bad = SyncBlockOr(bad);
    const uint32_t chunks = ragged_.blocks * ragged_.pieces;
    uint64_t longest = 0;
    for (uint32_t chunk = ThreadIndex(); chunk < chunks; chunk += Threads()) {
      const uint64_t in = CutOne(chunk, 0, RaggedVectors::kInOffset, RaggedVectors::kInSize, bad);
      const uint64_t out = CutOne(chunk, 2 * chunks, RaggedVectors::kOutOffset, RaggedVectors::kPeerSize, bad);
      const uint64_t longer = in > out ? in : out;
      longest = longest > longer ? longest : longer;
    }
    shared.longest[ThreadIndex()] = longest;
    SyncBlock();
    if (ThreadIndex() != 0) return;
    for (uint32_t t = 1; t < Threads(); ++t) longest = longest > shared.longest[t] ? longest : shared.longest[t];
    ragged_.extents[4 * chunks] = bad ? Extents::kBadSizes : longest;
  }

 private:
  JAXRING_DEVICE int64_t At(int vector, uint32_t i) const {
    const void* at = ragged_.vectors.at[vector];
    if (ragged_.vectors.wide >> vector & 1) return static_cast<const int64_t*>(at)[i];
    return static_cast<const int32_t*>(at)[i];
  }

  JAXRING_DEVICE static bool Fits(int64_t offset, int64_t size, uint64_t rows) {
    return static_cast<uint64_t>(offset) <= rows && static_cast<uint64_t>(size) <= rows - static_cast<uint64_t>(offset);
  }

  JAXRING_DEVICE bool Check(uint32_t i) const {
    int64_t value[RaggedVectors::kCount];
    bool negative = false;
    JAXRING_UNROLL
    for (int v = 0; v < RaggedVectors::kCount; ++v) {
      value[v] = At(v, i);
      negative |= value[v] < 0;
    }
    const int64_t said = value[RaggedVectors::kOutSize], comes = value[RaggedVectors::kPeerSize];
    Sizes wrong = Sizes::kGood;
    if (negative) {
      wrong = Sizes::kNegative;
    } else if (!Fits(value[RaggedVectors::kInOffset], value[RaggedVectors::kInSize], ragged_.in_rows)) {
      wrong = Sizes::kInput;
    } else if (!Fits(value[RaggedVectors::kOutOffset], comes, ragged_.out_rows)) {
      wrong = Sizes::kOutput;
    } else if (said != comes) {
      wrong = Sizes::kDisagree;
    }
    if (wrong == Sizes::kGood) return true;
    Tell(wrong, i, said, comes);
    return false;
  }

  JAXRING_DEVICE void Tell(Sizes wrong, uint32_t i, int64_t said, int64_t comes) const {
    Status& status = *args_.failure.status;
    if (!Claim(&status.claimed)) return;
    status.rank = args_.group.rank;
    status.peer = static_cast<int32_t>(i);
    status.step = static_cast<uint32_t>(wrong);
    status.number = static_cast<uint64_t>(said);
    status.waited_ns = static_cast<uint64_t>(comes);
    StoreRelease(&status.fault, static_cast<uint32_t>(Fault::kBadSizes));
    if (args_.failure.spread_faults) StoreRelaxed(const_cast<uint32_t*>(args_.failure.abort), 1u);
  }

  // The chunk's begin and length, which sender and receiver compute alike: pieces end at whole lines of the block.
  JAXRING_DEVICE uint64_t CutOne(uint32_t chunk, uint32_t to, int offsets, int sizes, bool bad) const {
    const uint32_t block = chunk / ragged_.pieces, piece = chunk % ragged_.pieces;
    const uint64_t whole = bad ? 0 : static_cast<uint64_t>(At(sizes, block)) * ragged_.row_elements;
    const uint64_t begin = EndOf(whole, piece), end = EndOf(whole, piece + 1);
    const uint64_t offset = bad ? 0 : static_cast<uint64_t>(At(offsets, block)) * ragged_.row_elements;
    ragged_.extents[to + chunk] = offset + begin;
    ragged_.extents[to + ragged_.blocks * ragged_.pieces + chunk] = end - begin;
    return end - begin;
  }
  JAXRING_DEVICE uint64_t EndOf(uint64_t elements, uint32_t pieces) const {
    constexpr uint64_t kLine = 128;
    const uint64_t unit = kLine / BytesOf(args_.call.dtype);
    const uint64_t end = (elements + unit - 1) / unit * pieces / ragged_.pieces * unit;
    return end < elements ? end : elements;
  }

  const Ragged& ragged_;
  const Args& args_;
};

}  // namespace jaxring::cuda
