// The packs that a thread handles, and the layout of packs in memory, in scratch and at unaligned addresses.
#pragma once

#include "cuda/device/lane.h"

namespace jaxring::cuda {

inline constexpr uint32_t kNoPack = 0xffffffffu;

JAXRING_DEVICE uint32_t WarpIndex() { return ThreadIndex() / kWarp; }
JAXRING_DEVICE uint32_t Warps() { return Threads() / kWarp; }
JAXRING_DEVICE uint32_t WarpLane() { return ThreadIndex() % kWarp; }

// A warp handles kPacks runs of 32 neighbouring packs at a time.
template <int kPacks>
struct RunsOfPacks {
  static constexpr uint32_t kPerWarp = kWarp * kPacks;
  JAXRING_DEVICE static uint32_t Pack(uint32_t begin, int u) { return begin + u * kWarp + WarpLane(); }
};

// The index of vector `v` of a pack's `kVectors`. The first vectors of 32 packs come first, then their second ones, and
// so on, so that a warp's accesses are neighbours.
template <int kVectors>
JAXRING_DEVICE uint64_t VectorOffset(uint32_t pack, int v) {
  return (static_cast<uint64_t>(pack / kWarp * kVectors + v) * kWarp + pack % kWarp) * kPackBytes;
}

// Part of a pack at any address: `bytes` of it, in elements of 2^log2 bytes, at most 4.
template <class T>
JAXRING_DEVICE Vec LoadParts(const char* from, uint32_t bytes) {
  Vec v{};
  JAXRING_UNROLL
  for (uint32_t at = 0; at < kPackBytes; at += sizeof(T)) {
    if (at < bytes) v.w[at / 4] |= static_cast<uint32_t>(LoadElement<T>(from + at)) << 8 * (at % 4);
  }
  return v;
}
template <class T>
JAXRING_DEVICE void StoreParts(char* to, const Vec& v, uint32_t bytes, bool far) {
  JAXRING_UNROLL
  for (uint32_t at = 0; at < kPackBytes; at += sizeof(T)) {
    const T element = static_cast<T>(v.w[at / 4] >> 8 * (at % 4));
    if (at < bytes) StoreEitherElement<T>(to + at, element, far);
  }
}
JAXRING_DEVICE Vec LoadEdge(const char* from, uint32_t bytes, uint32_t log2) {
  if (log2 == 0) return LoadParts<uint8_t>(from, bytes);
  if (log2 == 1) return LoadParts<uint16_t>(from, bytes);
  return LoadParts<uint32_t>(from, bytes);
}
JAXRING_DEVICE void StoreEdge(char* to, const Vec& v, uint32_t bytes, uint32_t log2, bool far) {
  if (log2 == 0) return StoreParts<uint8_t>(to, v, bytes, far);
  if (log2 == 1) return StoreParts<uint16_t>(to, v, bytes, far);
  StoreParts<uint32_t>(to, v, bytes, far);
}

}  // namespace jaxring::cuda
