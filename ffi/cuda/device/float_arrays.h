// Arrays of floats of any dtype, of which each thread of a warp loads and stores every 32nd element as an accumulator:
// T is float, or double for float64. `kCount` elements of a thread at a time, of those before `end`.
#pragma once

#include "cuda/device/device_formats.h"
#include "cuda/device/packs.h"

namespace jaxring::cuda {

// Calls `load(at)` for the index of each element: T of what is in memory.
template <int kCount, class T, class Load>
JAXRING_DEVICE void LoadEach(uint64_t begin, uint64_t end, T (&to)[kCount], const Load& load) {
  JAXRING_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const uint64_t at = begin + u * kWarp + WarpLane();
    if (at < end) to[u] = load(at);
  }
}

template <int kCount, class T>
JAXRING_DEVICE void LoadValues(const char* array, DType dtype, uint64_t begin, uint64_t end, T (&to)[kCount]) {
  if constexpr (sizeof(T) == 8) {
    LoadEach(begin, end, to, [=](uint64_t at) { return LoadElement<double>(array + 8 * at); });
  } else if (dtype == DType::kF32) {
    LoadEach(begin, end, to, [=](uint64_t at) { return LoadElement<float>(array + 4 * at); });
  } else if (dtype == DType::kBF16) {
    LoadEach(begin, end, to,
             [=](uint64_t at) { return AsFloat(static_cast<uint32_t>(LoadElement<uint16_t>(array + 2 * at)) << 16); });
  } else if (dtype == DType::kF16) {
    LoadEach(begin, end, to, [=](uint64_t at) {
      float low, high;
      UnpackHalves(LoadElement<uint16_t>(array + 2 * at), &low, &high);
      return low;
    });
  } else if (dtype == DType::kF8E4M3FN) {
    LoadEach(begin, end, to, [=](uint64_t at) { return Float8E4M3FN::Unpack(LoadElement<uint8_t>(array + at)); });
  } else {
    LoadEach(begin, end, to, [=](uint64_t at) { return Float8E5M2::Unpack(LoadElement<uint8_t>(array + at)); });
  }
}

template <int kCount, class T, class Store>
JAXRING_DEVICE void StoreEach(uint64_t begin, uint64_t end, const T (&from)[kCount], const Store& store) {
  JAXRING_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const uint64_t at = begin + u * kWarp + WarpLane();
    if (at < end) store(at, from[u]);
  }
}

// Rounded once, to nearest even.
template <int kCount, class T>
JAXRING_DEVICE void StoreValues(char* array, DType dtype, uint64_t begin, uint64_t end, const T (&from)[kCount]) {
  if constexpr (sizeof(T) == 8) {
    StoreEach(begin, end, from, [=](uint64_t at, double value) { StoreElement<double>(array + 8 * at, value); });
  } else if (dtype == DType::kF32) {
    StoreEach(begin, end, from, [=](uint64_t at, float value) { StoreElement<float>(array + 4 * at, value); });
  } else if (dtype == DType::kBF16) {
    StoreEach(begin, end, from, [=](uint64_t at, float value) {
      StoreElement(array + 2 * at, static_cast<uint16_t>(PackBfloat16s(value, 0)));
    });
  } else if (dtype == DType::kF16) {
    StoreEach(begin, end, from, [=](uint64_t at, float value) {
      StoreElement(array + 2 * at, static_cast<uint16_t>(PackHalves(value, 0)));
    });
  } else if (dtype == DType::kF8E4M3FN) {
    StoreEach(begin, end, from, [=](uint64_t at, float value) {
      StoreElement(array + at, static_cast<uint8_t>(Float8E4M3FN::Pack(value)));
    });
  } else {
    StoreEach(begin, end, from, [=](uint64_t at, float value) {
      StoreElement(array + at, static_cast<uint8_t>(Float8E5M2::Pack(value)));
    });
  }
}

}  // namespace jaxring::cuda
