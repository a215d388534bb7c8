// Where the buffers of a launch are for the ranks that address them: in place, or in memory of jaxring's own.
#include "base/mutex.h"
#include "cuda/host/launcher.h"

namespace jaxring::cuda {

// Whether all of the domain can address the buffer, and where it is. Does not wait: what other processes have not
// mapped, or other devices do not reach, is mapped and granted for later launches.
bool LaunchPlan::Locate(Local& local, const void* pointer, uint64_t bytes, uint64_t* region, uint64_t* offset) {
  if (bytes == 0) return true;
  const bool alone = communicator_->ranks().one_process();
  const Allocation allocation = communicator_->gpu().memory.Find(pointer);
  const bool whole = Within(allocation, pointer, bytes);
  if (alone ? allocation.base != nullptr && !whole : allocation.sharing == Sharing::kNone || !whole) return false;
  *region = 0;
  *offset = alone ? reinterpret_cast<uint64_t>(pointer)
                  : static_cast<uint64_t>(static_cast<const char*>(pointer) - allocation.base);
  {
    MutexLock lock(mutex_);
    if (auto known = local.known.find(allocation.id); known != local.known.end()) {
      *region = known->second;
      return true;
    }
  }
  const bool reached = Reached(local, pointer);
  if (!alone) *region = communicator_->regions().exports().TryShare(allocation, communicator_->ranks().processes());
  if (!reached || (!alone && *region == 0)) return false;
  MutexLock lock(mutex_);
  if (allocation.id != 0) local.known[allocation.id] = static_cast<uint32_t>(*region);
  return true;
}

// Whether the process's other devices can address the memory at the pointer. Where they cannot, they will.
bool LaunchPlan::Reached(const Local& local, const void* pointer) {
  for (int device : local.others) {
    if (communicator_->gpu().memory.Reaches(device, pointer)) continue;
    communicator_->regions().exports().PostGrant(local.others, pointer);
    return false;
  }
  return true;
}

// Whether other ranks access the buffers themselves.
bool LaunchPlan::Addressed(const Local& local) const {
  return !local.multicast && !local.copies && spec_.kernel.fused != Fused::kAllReduceOneShot;
}

// Finds the locations of the buffers for peers. Buffers that not all of these can address are replaced by own memory.
void LaunchPlan::Place(Local& local, int rank, const void* in, void* out, Args* args) {
  args->buffers.in = static_cast<const char*>(in);
  args->buffers.out = static_cast<char*>(out);
  if (!Addressed(local)) return;
  const bool own = !local.members || communicator_->ranks().one_process();
  if (own && local.others.empty()) {
    args->buffers.in_region = args->buffers.out_region = 0;
    args->buffers.in_offset = reinterpret_cast<uint64_t>(in);
    args->buffers.out_offset = reinterpret_cast<uint64_t>(out);
    return;
  }
  if (spec_.zero_copy || own) {
    // Both, so that both are asked for at the first launch.
    const bool in_located = Locate(local, in, in_bytes(), &args->buffers.in_region, &args->buffers.in_offset);
    if (Locate(local, out, out_bytes(), &args->buffers.out_region, &args->buffers.out_offset) && in_located) return;
  }
  const auto lacks = [](uint64_t bytes, const auto* replacement) { return bytes != 0 && replacement == nullptr; };
  if (lacks(in_bytes(), local.replace_in) || lacks(out_bytes(), local.replace_out)) {
    throw std::runtime_error("other processes or devices have not mapped the buffers of rank " + std::to_string(rank) +
                             ", and there was no memory for replacements when the call was planned: leave more of the "
                             "GPU free (XLA_PYTHON_CLIENT_MEM_FRACTION)");
  }
  ++staged_;
  args->staging.from = args->buffers.in;
  args->staging.to = args->buffers.out;
  args->staging.in_bytes = in_bytes();
  args->staging.out_bytes = out_bytes();
  if (in_bytes() != 0) {
    args->buffers.in = local.replace_in->memory;
    args->buffers.in_region = local.replace_in->location.region;
    args->buffers.in_offset = local.replace_in->location.offset;
  }
  if (out_bytes() != 0) {
    args->buffers.out = local.replace_out->memory;
    args->buffers.out_region = local.replace_out->location.region;
    args->buffers.out_offset = local.replace_out->location.offset;
  }
}

}  // namespace jaxring::cuda
