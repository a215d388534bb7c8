// Multicast objects of the fake GPU: a page in shared memory stores which devices were added and which memory was
// bound. Where a driver would wait, these raise an error.
#pragma once

#include <functional>
#include <memory>

#include "cuda/host/gpu/gpu.h"

namespace jaxring::cuda::fake {

// A device's memory that is to be bound, and a descriptor of it that stays open.
using NewMemory = std::function<std::pair<char*, int>(int device, uint64_t bytes)>;

std::unique_ptr<MulticastObject> NewMulticast(int devices, uint64_t bytes, NewMemory memory);
// The caller keeps `descriptor`.
std::unique_ptr<MulticastObject> OpenMulticast(int descriptor, NewMemory memory);

}  // namespace jaxring::cuda::fake
