// Runs kernels of many streams on one SIMT machine, on a thread of its own, for as long as the process lives.
//
// The machine runs a fixed set of streams to their ends. So that launches may come at any time, each stream's kernels
// alternate with an idle kernel, whose single thread ends when there is a task, and an additional stream yields to
// other processes in every round.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/sim/fake/gpu_fake.h"
#include "cuda/sim/shim/shim_kernels.h"

namespace jaxring::cuda::fake {

// Streams as callers of GpuStreams have them, and as the machine numbers them.
inline int NumberOf(void* stream) { return static_cast<int>(reinterpret_cast<intptr_t>(stream)) - 1; }
inline void* StreamOfNumber(int number) { return reinterpret_cast<void*>(static_cast<intptr_t>(number) + 1); }

class Machine {
 public:
  static constexpr int kStreams = 24;
  // This process's machine, never destroyed.
  static Machine& Get();

  // Takes a free stream's number; throws GpuError when all are taken.
  int NewStream();
  void CloseStream(int stream);
  void Push(int stream, Task task);
  // Waits until all tasks pushed so far are done. Throws GpuError for a task's error.
  void Synchronize(int stream);

  // A capture is named by the stream that began it. Another stream becomes part of it when it waits for an event that
  // was recorded in the capture.
  void BeginCapture(int stream);
  Graph EndCapture(int stream);
  bool Capturing(int stream);
  int RunningKernels();
  uint64_t Pushed(int stream);
  void AwaitNoKernel();
  // The capture in which an event was recorded, or -1.
  int Recorded(int stream, const Mark& mark);
  void Await(int stream, const Mark& mark, int capture);

 private:
  struct Queue {
    std::deque<Task> tasks;
    uint64_t pushed = 0, done = 0;
    std::string error;  // is kept, as a stream's error is
  };
  Machine();
  void Run();
  void PushLocked(int stream, Task task);
  bool HasKernel(int stream);
  void FeedLocked(int stream);
  simt::Kernel Idle(int stream);
  simt::Kernel KernelOf(int stream, const Task& task);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Queue, kStreams> queues_;
  std::array<int, kStreams> capture_;  // of each stream, or -1
  std::map<int, Graph> graphs_;
  std::array<bool, kStreams> taken_{};
  uint64_t waiting_ = 0;  // tasks that are not done
  int running_ = 0;       // kernels
  std::vector<simt::Stream> streams_;
  simt::Machine machine_;
  std::thread thread_;
};

}  // namespace jaxring::cuda::fake
