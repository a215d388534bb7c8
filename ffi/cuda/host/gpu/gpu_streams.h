// Streams of the GPUs, XLA's and our own: their order, the copies on them, and graphs of what is enqueued on them.
#pragma once

#include <cstdint>
#include <functional>

#include "cuda/host/gpu/gpu_error.h"

namespace jaxring::cuda {

class GpuStreams {
 public:
  virtual ~GpuStreams() = default;
  // Streams that are not XLA's, for tests and for setting up. Synchronize throws the error of a kernel that has
  // trapped.
  virtual void* New(int device) = 0;
  virtual void Close(int device, void* stream) = 0;
  virtual void Synchronize(int device, void* stream) = 0;
  // A stream for work that overlaps XLA's, with a higher priority for multiprocessors.
  virtual void* NewSide(int device) = 0;

  virtual void CopyAsync(void* to, const void* from, uint64_t bytes, void* stream) = 0;
  virtual void ClearAsync(int device, void* memory, uint64_t bytes, void* stream) = 0;  // to zeros
  // Waits for the stream's work and then copies to pinned memory. A copy to other memory of the host would hold the
  // driver's lock until the stream gets there: other threads could neither allocate nor launch what the stream's
  // kernels wait for.
  virtual void ReadBehind(void* stream, void* to, const void* from, uint64_t bytes) = 0;

  // Record marks the work enqueued on `stream` so far. Follow orders later work on `stream` after the last Record
  // before this call. If one stream is being captured, Follow makes the other part of the capture, and an event must
  // join it again before the capture ends.
  virtual void* NewEvent(int device) = 0;
  virtual void Record(void* event, void* stream) = 0;
  virtual void Follow(void* stream, void* event) = 0;
  virtual void CloseEvent(int device, void* event) = 0;

  virtual bool Capturing(void* stream) = 0;
  // Captures a graph: what `enqueue` puts on the stream, and on streams that follow it and that it follows in the end.
  // Returns a function that launches the graph on the stream, for as long as that exists.
  virtual std::function<void()> Capture(int device, void* stream, const std::function<void()>& enqueue) = 0;
};

}  // namespace jaxring::cuda
