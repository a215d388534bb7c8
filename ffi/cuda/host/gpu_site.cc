#include "cuda/host/gpu_site.h"

#include "cuda/host/gpu_runtime.h"

namespace jaxring::cuda {

std::vector<int32_t> Site::GroupPartitions(int group) const {
  auto begin = spec_.groups.begin() + group * spec_.group_size;
  return {begin, begin + spec_.group_size};
}

std::map<int, int> Site::Arrived(int group) {
  MutexLock lock(mutex_);
  return groups_[group].devices;
}

std::map<int, std::string> Site::ShareBuffers(int group, Communicator& communicator) {
  std::map<int, Buffers> buffers;
  {
    MutexLock lock(mutex_);
    buffers = groups_[group].buffers;
  }
  std::map<int, std::string> how;
  for (const auto& [rank, own] : buffers) {
    how.emplace(rank, communicator.memory().ShareBuffers(rank, own.in, own.in_bytes, own.out, own.out_bytes));
  }
  return how;
}

void Site::Resolve(int group, std::shared_ptr<LaunchPlan> plan) {
  runtime_->Watch(plan);
  {
    MutexLock lock(mutex_);
    groups_[group].plan = std::move(plan);
  }
  changed_.NotifyAll();
}

void Site::Reject(int group, jaxring::Status status) {
  {
    MutexLock lock(mutex_);
    groups_[group].asked = false;
    groups_[group].rejection = std::move(status);
    ++groups_[group].rejections;
  }
  changed_.NotifyAll();
}

void Site::Identify(int device, int partition, jaxring::Status status) {
  {
    MutexLock lock(mutex_);
    if (status.ok()) {
      partitions_[device] = partition;
    } else {
      unidentified_[device] = std::move(status);
    }
  }
  changed_.NotifyAll();
}

jaxring::Status Site::Partition(int device, const void* partition, void* stream, int* found) {
  const Deadline deadline = After(spec_.timeout_s);
  RelockableMutexLock lock(mutex_);
  if (auto known = partitions_.find(device); known != partitions_.end()) {
    *found = known->second;
    return {};
  }
  if (!runtime_->gpu().streams.Capturing(stream)) {
    lock.Unlock();
    // This stream writes the operand, so it must be waited for. Once per site and device.
    const uint32_t value = runtime_->ReadBehind(stream, partition);
    lock.Lock();
    *found = partitions_[device] = static_cast<int>(value);
    return {};
  }
  unidentified_.erase(device);
  runtime_->Ask({shared_from_this(), -1, device});
  while (partitions_.count(device) == 0 && unidentified_.count(device) == 0) {
    if (auto why = runtime_->Ended()) return jaxring::Status::Error(Code::kAborted, "jaxring: " + *why);
    if (!changed_.WaitUntil(mutex_, std::min(deadline, After(0.2))) && std::chrono::steady_clock::now() > deadline) {
      return jaxring::Status::Error(Code::kDeadlineExceeded, "jaxring: the planner did not answer");
    }
  }
  if (partitions_.count(device) == 0) return unidentified_[device];
  *found = partitions_[device];
  return {};
}

jaxring::Status Site::Run(int device, const void* partition, const void* in, void* out, uint64_t in_bytes,
                          uint64_t out_bytes, void* stream, const RaggedVectors* vectors,
                          const EpilogueBuffers* epilogue, bool on_side_stream) {
  int number = 0;
  try {
    if (jaxring::Status status = Partition(device, partition, stream, &number); !status.ok()) return status;
  } catch (const std::exception& error) {
    return jaxring::Status::Error(Code::kInternal, std::string("jaxring: ") + error.what());
  }
  auto place = place_.find(number);
  if (place == place_.end()) {
    return jaxring::Status::Error(Code::kInternal, "jaxring: partition " + std::to_string(number) + " is in no group");
  }
  const auto [group_index, rank] = place->second;
  std::shared_ptr<LaunchPlan> plan;
  {
    const Deadline deadline = After(spec_.timeout_s);
    MutexLock lock(mutex_);
    Group& group = groups_[group_index];
    group.devices[rank] = device;
    group.buffers.emplace(rank, Buffers{in, out, in_bytes, out_bytes});
    const uint64_t rejections = group.rejections;
    if (!group.plan && !group.asked) {
      group.asked = true;
      runtime_->Ask({shared_from_this(), group_index, -1});
    }
    while (!group.plan) {
      if (group.rejections != rejections) return group.rejection;
      if (auto why = runtime_->Ended()) return jaxring::Status::Error(Code::kAborted, "jaxring: " + *why);
      if (!changed_.WaitUntil(mutex_, std::min(deadline, After(0.2))) && std::chrono::steady_clock::now() > deadline) {
        return jaxring::Status::Error(Code::kDeadlineExceeded,
                                      "jaxring: no plan within the deadline for " + spec_.spec);
      }
    }
    plan = group.plan;
  }
  jaxring::Status status = on_side_stream
                               ? RunOnSideStream(*plan, rank, device, in, out, in_bytes, out_bytes, stream, epilogue)
                               : plan->Launch(rank, in, out, in_bytes, out_bytes, stream, vectors, epilogue);
  // The plan knows that its communicator is broken, not why.
  if (!status.ok() && runtime_->Ended()) return jaxring::Status::Error(Code::kAborted, status.message);
  return status;
}

jaxring::Status Site::RunOnSideStream(LaunchPlan& plan, int rank, int device, const void* in, void* out,
                                      uint64_t in_bytes, uint64_t out_bytes, void* stream,
                                      const EpilogueBuffers* epilogue) {
  try {
    if (out_bytes == 0) return plan.Launch(rank, in, out, in_bytes, out_bytes, stream, nullptr, epilogue);
    SideStreams& side_streams = runtime_->side_streams();
    void* side = side_streams.Fork(device, plan.communicator().ranks()[rank].device, stream);
    jaxring::Status status = plan.Launch(rank, in, out, in_bytes, out_bytes, side, nullptr, epilogue);
    side_streams.Started(device, out);  // even if it failed: a capture must join the side stream again
    return status;
  } catch (const std::exception& error) {
    return jaxring::Status::Error(Code::kInternal, plan.spec().what + ": " + error.what());
  }
}

}  // namespace jaxring::cuda
