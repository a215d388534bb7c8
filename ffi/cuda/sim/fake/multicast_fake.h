// Multicast objects of the fake GPU: a page in shared memory says which devices were added and whose memory was bound.
// What a driver would wait for is an error here.
#pragma once

#include <functional>
#include <memory>

#include "cuda/host/gpu/gpu.h"

namespace jaxring::cuda::fake {

// The memory of a device that is to be bound, and a descriptor of it that stays open.
using NewMemory = std::function<std::pair<char*, int>(int device, uint64_t bytes)>;

std::unique_ptr<MulticastObject> NewMulticast(int devices, uint64_t bytes, NewMemory memory);
// `descriptor` stays the caller's.
std::unique_ptr<MulticastObject> OpenMulticast(int descriptor, NewMemory memory);

}  // namespace jaxring::cuda::fake
