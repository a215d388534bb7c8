// How lanes and ranks share a block among them.
#pragma once

#include "cuda/device/device.h"
#include "cuda/device/tables.h"

namespace jaxring::cuda {

// Bytes [begin, end) of a block.
struct Share {
  uint64_t begin, end;
};

// Share `number` of `of`, at whole runs of 32 packs.
JAXRING_DEVICE Share ShareOf(Share whole, uint64_t number, uint64_t of) {
  constexpr uint64_t kRun = kWarp * kPackBytes;
  const uint64_t runs = (whole.end - whole.begin + kRun - 1) / kRun;
  const uint64_t begin = whole.begin + runs * number / of * kRun, end = whole.begin + runs * (number + 1) / of * kRun;
  return {begin < whole.end ? begin : whole.end, end < whole.end ? end : whole.end};
}

}  // namespace jaxring::cuda
