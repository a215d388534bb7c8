#include "cuda/sim/fake/machine.h"

#include <algorithm>
#include <set>

namespace jaxring::cuda::fake {
namespace {

void PlayOne(const Task& task, Shared& shared) {
  const Args& args = task.args;
  if (task.barrier != Task::kNoBarrier) return shim::PlayCopyBarrier(task.barrier == Task::kOpen, args, shared);
  if (task.multicast) return shim::PlayMulticast(*task.multicast, args, shared);
  if (task.point_to_point) return shim::PlayPointToPoint(*task.point_to_point, args, shared);
  if (task.epilogue) return shim::PlayEpilogue(*task.epilogue, args, shared);
  if (task.fused >= 0) return shim::PlayFused(static_cast<Fused>(task.fused), args, shared);
  shim::PlayTable(args, shared);
}

}  // namespace

Machine& Machine::Get() {
  static auto* machine = new Machine;
  return *machine;
}

Machine::Machine() {
  capture_.fill(-1);
  streams_.resize(kStreams + 1);
  for (int s = 0; s < kStreams; ++s) streams_[s].push_back(Idle(s));
  streams_[kStreams].push_back({1,
                                1,
                                [this] {
                                  while (true) {
                                    {
                                      std::unique_lock lock(mutex_);
                                      if (waiting_ == 0) changed_.wait(lock, [this] { return waiting_ != 0; });
                                    }
                                    std::this_thread::yield();
                                    Pause(1);
                                  }
                                },
                                {}});
  thread_ = std::thread([this] { machine_.Run(streams_); });
  thread_.detach();
}

int Machine::NewStream() {
  std::lock_guard lock(mutex_);
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  if (free == taken_.end()) throw GpuError("the fake GPU has no more streams");
  *free = true;
  return static_cast<int>(free - taken_.begin());
}

void Machine::CloseStream(int stream) {
  std::lock_guard lock(mutex_);
  taken_[stream] = false;
  queues_[stream].error.clear();
}

void Machine::Push(int stream, Task task) {
  {
    std::lock_guard lock(mutex_);
    PushLocked(stream, std::move(task));
  }
  changed_.notify_all();
}

void Machine::PushLocked(int stream, Task task) {
  if (capture_[stream] >= 0) {
    graphs_[capture_[stream]].emplace_back(stream, std::move(task));
    return;
  }
  queues_[stream].tasks.push_back(std::move(task));
  ++queues_[stream].pushed;
  ++waiting_;
}

void Machine::BeginCapture(int stream) {
  std::lock_guard lock(mutex_);
  capture_[stream] = stream;
}

bool Machine::Capturing(int stream) {
  std::lock_guard lock(mutex_);
  return capture_[stream] >= 0;
}

Graph Machine::EndCapture(int stream) {
  std::lock_guard lock(mutex_);
  Graph graph = std::move(graphs_[stream]);
  graphs_.erase(stream);
  // The last that another stream does must be a record that this one, or one that came back, waits for.
  std::set<Mark> awaited;
  std::set<int> seen;
  bool joined = true;
  for (auto it = graph.rbegin(); it != graph.rend(); ++it) {
    if (it->second.awaits) awaited.insert(it->second.awaits);
    if (it->first != stream && seen.insert(it->first).second) joined &= awaited.count(it->second.sets) != 0;
  }
  for (int& in : capture_) {
    if (in == stream) in = -1;
  }
  if (!joined) throw GpuError("capture ended with a stream that did not come back (cudaErrorStreamCaptureUnjoined)");
  return graph;
}

int Machine::Recorded(int stream, const Mark& mark) {
  Task task;
  task.work = [] {};
  task.sets = mark;
  int capture;
  {
    std::lock_guard lock(mutex_);
    capture = capture_[stream];
    PushLocked(stream, std::move(task));
  }
  changed_.notify_all();
  return capture;
}

void Machine::Await(int stream, const Mark& mark, int capture) {
  Task task;
  task.work = [] {};
  task.awaits = mark;
  {
    std::lock_guard lock(mutex_);
    if (capture >= 0 && capture_[capture] != capture) throw GpuError("a wait for an event of a capture that has ended");
    if (capture >= 0) capture_[stream] = capture;
    PushLocked(stream, std::move(task));
  }
  changed_.notify_all();
}

void Machine::Synchronize(int stream) {
  std::unique_lock lock(mutex_);
  const uint64_t until = queues_[stream].pushed;
  changed_.wait(lock, [&] { return queues_[stream].done >= until; });
  if (until != 0) machine_.See(static_cast<uint32_t>(stream));  // before that, its thread may not have begun
  if (!queues_[stream].error.empty()) throw GpuError(queues_[stream].error);
}

// Runs a task that is not a kernel at once.
bool Machine::HasKernel(int stream) {
  std::unique_lock lock(mutex_);
  Queue& queue = queues_[stream];
  while (!queue.tasks.empty()) {
    Task& front = queue.tasks.front();
    if (front.awaits) {
      if (!front.awaits->yet.load(std::memory_order_acquire)) return false;
      if (queue.error.empty()) queue.error = front.awaits->error;
    }
    if (!front.work && queue.error.empty()) return true;
    if (queue.error.empty()) {
      auto work = front.work;
      lock.unlock();
      std::string error;
      try {
        work();
      } catch (const std::exception& raised) {
        error = raised.what();
      }
      lock.lock();
      queue.error = error;
    }
    if (const Mark& mark = queue.tasks.front().sets) {
      mark->error = queue.error;
      mark->yet.store(true, std::memory_order_release);
    }
    queue.tasks.pop_front();
    ++queue.done;
    --waiting_;
    changed_.notify_all();
  }
  return false;
}

int Machine::RunningKernels() {
  std::lock_guard lock(mutex_);
  return running_;
}

uint64_t Machine::Pushed(int stream) {
  std::lock_guard lock(mutex_);
  return queues_[stream].pushed;
}

void Machine::AwaitNoKernel() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return running_ == 0; });
}

simt::Kernel Machine::Idle(int stream) {
  return {1, 1,
          [this, stream] {
            while (!HasKernel(stream)) Pause(1);
          },
          [this, stream] {
            Machine* self = this;  // pushing moves the function that runs
            const int number = stream;
            std::lock_guard lock(self->mutex_);
            self->FeedLocked(number);
          }};
}

void Machine::FeedLocked(int stream) {
  simt::Kernel kernel = KernelOf(stream, queues_[stream].tasks.front());
  ++running_;
  for (simt::Kernel& past : streams_[stream]) past.body = nullptr;
  streams_[stream].push_back(std::move(kernel));
  streams_[stream].push_back(Idle(stream));
}

simt::Kernel Machine::KernelOf(int stream, const Task& task) {
  std::function<void()> body;
  if (task.ragged) {
    body = [args = task.args, ragged = *task.ragged, shared = std::make_shared<RaggedShared>()] {
      shim::PlayExtents(ragged, args, *shared);
    };
  } else {
    auto shared = std::make_shared<std::vector<Shared>>(task.args.shape.lanes);
    body = [task, shared] { PlayOne(task, (*shared)[BlockIndex()]); };
  }
  auto trapped = std::make_shared<std::atomic<bool>>(false);
  auto done = [this, stream, trapped] {
    std::lock_guard lock(mutex_);
    if (*trapped) queues_[stream].error = "unspecified launch failure";
    queues_[stream].tasks.pop_front();
    ++queues_[stream].done;
    --waiting_;
    --running_;
    changed_.notify_all();
  };
  return {task.ragged ? 1 : task.args.shape.lanes, static_cast<uint32_t>(task.threads), body, done,
          [trapped] { *trapped = true; }};
}

}  // namespace jaxring::cuda::fake
