#include "cuda/host/group/group_memory.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "cuda/host/network/proxy.h"

namespace jaxring::cuda {
namespace {

// The size of a buffer that several plans use: at most a quarter more than asked for.
uint64_t Roomy(uint64_t bytes) {
  constexpr uint64_t kLeast = uint64_t{1} << 16;
  uint64_t step = kLeast;
  while (8 * step <= bytes) step *= 2;
  return std::max(kLeast, (bytes + step - 1) / step * step);
}

}  // namespace

char* GroupMemory::New(int rank, uint64_t bytes) {
  ranks_.RequireLocal(rank);
  const int device = ranks_[rank].device;
  return ranks_.one_process() ? memory_.Allocate(device, bytes) : memory_.AllocateShared(device, bytes);
}

Location GroupMemory::Offer(int rank, const char* memory, uint64_t bytes) {
  if (ranks_.one_process()) return {0, reinterpret_cast<uint64_t>(memory)};
  Location location;
  std::string why_not;
  const auto look = [this] { health_.ThrowIfBroken(); };  // a process that is gone maps nothing any more
  const Deadline deadline = After(ranks_.spec().timeout_s);
  if (!regions_.exports().Share(memory, bytes, ranks_.processes(), deadline, &location, &why_not, look)) {
    throw std::runtime_error("device memory of " + ranks_[rank].name +
                             " cannot be shared with other processes: " + why_not +
                             ". Known causes are a container without --ipc=host, a MIG slice and Windows. "
                             "JAXRING_P2P=none uses the network instead.");
  }
  return location;
}

char* GroupMemory::Resolve(int rank, int peer, Location theirs) {
  ranks_.RequireLocal(rank);
  return regions_.Resolve(ranks_[rank].device, ranks_[peer].process, theirs, After(ranks_.spec().timeout_s));
}

Location GroupMemory::OfferStaging(int rank, uint64_t bytes) {
  if (staging_bytes_ != 0 && staging_bytes_ != bytes) {
    throw std::invalid_argument(ranks_.spec().name + ": staging buffers have " + std::to_string(staging_bytes_) +
                                " bytes and not " + std::to_string(bytes));
  }
  staging_bytes_ = bytes;
  char*& own = staging_buffers_[{rank, rank}];
  if (own == nullptr) own = New(rank, bytes);
  return Offer(rank, own, bytes);
}

void GroupMemory::EnterStaging(int rank, int peer, Location theirs) {
  staging_buffers_[{rank, peer}] = Resolve(rank, peer, theirs);
}

char* GroupMemory::StagingBuffer(int rank, int peer) const {
  const auto found = staging_buffers_.find({rank, peer});
  if (found == staging_buffers_.end()) {
    throw std::invalid_argument(ranks_.spec().name + ": the staging buffer of rank " + std::to_string(peer) +
                                " was not entered at rank " + std::to_string(rank));
  }
  return found->second;
}

char* GroupMemory::Scratch(int rank, uint64_t bytes) {
  MutexLock lock(mutex_);
  auto& buffers = locals_[rank].scratch;
  for (auto& [size, memory] : buffers) {
    if (size >= bytes) return memory;
  }
  // Launches on one device run one after another, so plans share the buffer. Smaller ones are kept, since graphs may
  // use them.
  const uint64_t size = Roomy(bytes);
  buffers.emplace_back(size, New(rank, size));
  return buffers.back().second;
}

void GroupMemory::OfferReplacement(int rank, Role role, uint64_t bytes) {
  if (ranks_.one_process() && ranks_.OtherDevices(rank).empty()) return;
  if (bytes == 0 || FindReplacement(rank, role, bytes) != nullptr) return;
  const uint64_t size = Roomy(bytes);
  char* memory = New(rank, size);
  const Location location = Offer(rank, memory, size);
  MutexLock lock(mutex_);
  locals_[rank].replacements[static_cast<int>(role)].push_back({size, memory, location});
}

const GroupMemory::Replacement* GroupMemory::FindReplacement(int rank, Role role, uint64_t bytes) const {
  ranks_.RequireLocal(rank);
  MutexLock lock(mutex_);
  const auto local = locals_.find(rank);
  if (local == locals_.end()) return nullptr;
  for (const Replacement& each : local->second.replacements[static_cast<int>(role)]) {
    if (each.bytes >= bytes) return &each;
  }
  return nullptr;
}

std::string GroupMemory::GrantBuffers(int rank, const void* in, uint64_t in_bytes, const void* out,
                                      uint64_t out_bytes) {
  std::string how;
  for (auto [pointer, bytes] : {std::pair(in, in_bytes), std::pair(out, out_bytes)}) {
    if (bytes == 0) continue;
    const std::vector<int> others = ranks_.OtherDevices(rank);
    const Allocation allocation = memory_.Find(pointer);
    if (!others.empty() && allocation.base != nullptr && !Within(allocation, pointer, bytes)) {
      return "staged: a buffer of rank " + std::to_string(rank) + " is put together from several allocations";
    }
    for (int device : others) {
      if (memory_.Reaches(device, pointer)) continue;
      try {
        memory_.Grant(device, pointer);
      } catch (const GpuError& error) {
        return "staged: device " + std::to_string(device) + " does not reach the memory of rank " +
               std::to_string(rank) + ", since " + error.what();
      }
      how = "granted to the process's other devices, which XLA's allocator had not named";
    }
  }
  return how;
}

std::string GroupMemory::ShareBuffers(int rank, const void* in, uint64_t in_bytes, const void* out,
                                      uint64_t out_bytes) {
  std::string granted = GrantBuffers(rank, in, in_bytes, out, out_bytes);
  if (ranks_.one_process() || granted.find("staged") == 0) return granted;
  const auto look = [this] { health_.ThrowIfBroken(); };
  bool descriptor = false;
  for (auto [what, pointer, bytes] : {std::tuple("input", in, in_bytes), std::tuple("output", out, out_bytes)}) {
    Location location;
    std::string why_not;
    if (bytes == 0) continue;
    const Deadline deadline = After(ranks_.spec().timeout_s);
    if (!regions_.exports().Share(pointer, bytes, ranks_.processes(), deadline, &location, &why_not, look)) {
      return "staged: the " + std::string(what) + " of rank " + std::to_string(rank) + " is not shared, since " +
             why_not;
    }
    descriptor |= memory_.Find(pointer).sharing == Sharing::kDescriptor;
  }
  return (descriptor ? "shared by file descriptor" : "shared by CUDA IPC") + (granted.empty() ? "" : ", " + granted);
}

cuda::Status* GroupMemory::NewStatus() {
  static_assert(sizeof(Status) <= kLineBytes);
  constexpr uint64_t kPage = 4096;
  MutexLock lock(mutex_);
  if (statuses_left_ == 0) {
    statuses_ = memory_.AllocatePinned(kPage);
    statuses_left_ = kPage / kLineBytes;
  }
  --statuses_left_;
  return reinterpret_cast<Status*>(std::exchange(statuses_, statuses_ + kLineBytes));
}

}  // namespace jaxring::cuda
