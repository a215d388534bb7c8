// Random bits for stochastic rounding. Per instruction set: see reduce/vectors.h.
//
// Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), which is JAX's
// generator, too: jax.extend.random.threefry_2x32 gives the same words.
#pragma once

#include "quantize/quantize.h"
#include "reduce/formats.h"

namespace jaxring::JAXRING_ISA {
namespace {

JAXRING_INLINE Bits RotateLeft(Bits x, int count) { return x << count | x >> (32 - count); }

// Replaces the counters (a, b) by their random words.
JAXRING_INLINE void Threefry(Bits& a, Bits& b, uint32_t key0, uint32_t key1) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDAu};
  a += keys[0];
  b += keys[1];
  for (uint32_t group = 0; group < 5; ++group) {
    for (int rotation : kRotations[group % 2]) {
      a += b;
      b = RotateLeft(b, rotation) ^ a;
    }
    a += keys[(group + 1) % 3];
    b += keys[(group + 2) % 3] + group + 1;
  }
}

// 16 random bits for each element of a block: element 32 k + j has half k % 2 of word k / 2 of counter j.
JAXRING_INLINE void RandomBits(uint32_t* bits, const Rounding& rounding, uint64_t first_word) {
  constexpr size_t kCount = kLanes<uint32_t>;
  Bits lanes;
  for (size_t i = 0; i < kCount; ++i) lanes[i] = static_cast<uint32_t>(i);
  for (size_t j = 0; j < kQuantWords; j += kCount) {
    const uint64_t word = first_word + j;  // a block's counters have one high half, because 32 divides 2^32
    Bits a = lanes + static_cast<uint32_t>(word), b = Broadcast(static_cast<uint32_t>(word >> 32));
    Threefry(a, b, rounding.seed, rounding.stream);
    char* to = reinterpret_cast<char*>(bits + j);
    StoreVector<uint32_t>(to, a & 0xffffu);
    StoreVector<uint32_t>(to + 4 * kQuantWords, a >> 16);
    StoreVector<uint32_t>(to + 8 * kQuantWords, b & 0xffffu);
    StoreVector<uint32_t>(to + 12 * kQuantWords, b >> 16);
  }
}

}  // namespace
}  // namespace jaxring::JAXRING_ISA
