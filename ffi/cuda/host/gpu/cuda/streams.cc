#include <memory>

#include "cuda/host/gpu/cuda/driver.h"
#include "cuda/host/gpu/cuda/parts.h"

namespace jaxring::cuda {
namespace {

cudaStream_t ToStream(void* stream) { return static_cast<cudaStream_t>(stream); }

class Streams final : public GpuStreams {
 public:
  void* New(int device) override {
    ContextScope scope(device);
    cudaStream_t stream;
    JAXRING_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void Close(int device, void* stream) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaStreamDestroy(ToStream(stream)));
  }
  void Synchronize(int device, void* stream) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaStreamSynchronize(ToStream(stream)));
  }
  void* NewSide(int device) override {
    ContextScope scope(device);
    int least, greatest;
    JAXRING_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream;
    JAXRING_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    return stream;
  }

  void CopyAsync(void* to, const void* from, uint64_t bytes, void* stream) override {
    if (bytes == 0) return;  // a graph cannot contain an empty copy
    ContextScope scope;
    JAXRING_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ToStream(stream)));
  }
  void ClearAsync(int device, void* memory, uint64_t bytes, void* stream) override {
    if (bytes == 0) return;
    ContextScope scope(device);
    JAXRING_CUDA(cudaMemsetAsync(memory, 0, bytes, ToStream(stream)));
  }
  void ReadBehind(void* stream, void* to, const void* from, uint64_t bytes) override {
    ContextScope scope;
    JAXRING_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, ToStream(stream)));
    JAXRING_CUDA(cudaStreamSynchronize(ToStream(stream)));
  }

  void* NewEvent(int device) override {
    ContextScope scope(device);
    cudaEvent_t event;
    JAXRING_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void Record(void* event, void* stream) override {
    ContextScope scope;
    JAXRING_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(event), ToStream(stream)));
  }
  void Follow(void* stream, void* event) override {
    ContextScope scope;
    JAXRING_CUDA(cudaStreamWaitEvent(ToStream(stream), static_cast<cudaEvent_t>(event), cudaEventWaitDefault));
  }
  void CloseEvent(int device, void* event) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
  }

  bool Capturing(void* stream) override {
    ContextScope scope;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    JAXRING_CUDA(cudaStreamIsCapturing(ToStream(stream), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  std::function<void()> Capture(int device, void* stream, const std::function<void()>& enqueue) override {
    ContextScope scope(device);
    JAXRING_CUDA(cudaStreamBeginCapture(ToStream(stream), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      if (cudaStreamEndCapture(ToStream(stream), &graph) == cudaSuccess) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    JAXRING_CUDA(cudaStreamEndCapture(ToStream(stream), &graph));
    cudaGraphExec_t executable = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    Check(error, "the instantiation of a graph");
    // A graph that runs is destroyed when it has ended.
    const std::shared_ptr<void> owner(executable, [device](void* of) {
      try {
        ContextScope scope(device);
        cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(of));
      } catch (const GpuError&) {  // the context is lost, and the graph with it
      }
    });
    return [device, stream, owner] {
      ContextScope scope(device);
      JAXRING_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(owner.get()), ToStream(stream)));
    };
  }
};

}  // namespace

GpuStreams& CudaStreams() {
  static auto* streams = new Streams;
  return *streams;
}

}  // namespace jaxring::cuda
