#include "cuda/host/gpu/cuda/driver.h"

#include <map>
#include <string>

#include "base/mutex.h"

namespace jaxring::cuda {
namespace {

template <class Function>
Function Find(const char* name, bool optional) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  // The version selects the variant of a function that cuda.h declares.
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, CUDA_VERSION, cudaEnableDefault, &found);
  if (optional && (error != cudaSuccess || found != cudaDriverEntryPointSuccess)) {
    cudaGetLastError();
    return nullptr;
  }
  Check(error, "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) {
    throw GpuError(std::string("the NVIDIA driver has no ") + name + ": it is older than this build's CUDA " +
                   std::to_string(CUDA_VERSION / 1000) + "; update it");
  }
  return reinterpret_cast<Function>(function);
}

// Never released: graphs and running kernels may need them, and XLA releases its contexts before this library ends.
Mutex mutex;
CUcontext last JAXRING_GUARDED_BY(mutex) = nullptr;

CUcontext PrimaryContext(int device) {
  static auto* contexts JAXRING_PT_GUARDED_BY(mutex) = new std::map<int, CUcontext>;
  const Driver& driver = TheDriver();
  MutexLock lock(mutex);
  CUcontext& context = (*contexts)[device];
  if (context == nullptr) {
    CUdevice handle;
    Check(driver.cuDeviceGet(&handle, device), "cuDeviceGet");
    Check(driver.cuDevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain");
  }
  return last = context;
}

}  // namespace

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that no other call reports it
  std::string text = std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  if (error == cudaErrorNoKernelImageForDevice) {
    text +=
        "; this build has no kernels for this GPU: build with JAXRING_CUDA_ARCHITECTURES=all, or without it on the "
        "GPU's machine";
  }
  throw GpuError(text);
}

void Check(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (TheDriver().cuGetErrorString(error, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  throw GpuError(std::string(what) + ": " + text + " (" + std::to_string(error) + ")");
}

const Driver& TheDriver() {
#define JAXRING_FIND(name) Find<decltype(&::name)>(#name, false),
#define JAXRING_MAYBE(name) Find<decltype(&::name)>(#name, true),
  static const Driver driver = {JAXRING_DRIVER_FUNCTIONS(JAXRING_FIND)
                                    JAXRING_OPTIONAL_DRIVER_FUNCTIONS(JAXRING_MAYBE)};
#undef JAXRING_FIND
#undef JAXRING_MAYBE
  return driver;
}

ContextScope::ContextScope(int device) {
  Check(TheDriver().cuCtxPushCurrent(PrimaryContext(device)), "cuCtxPushCurrent");
  pushed_ = true;
  Relax();
}

ContextScope::ContextScope() {
  CUcontext context = nullptr;
  Check(TheDriver().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context == nullptr) {
    {
      MutexLock lock(mutex);
      context = last;
    }
    if (context == nullptr) context = PrimaryContext(0);
    Check(TheDriver().cuCtxPushCurrent(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  Relax();
}

void ContextScope::Relax() { TheDriver().cuThreadExchangeStreamCaptureMode(&mode_); }

ContextScope::~ContextScope() {
  TheDriver().cuThreadExchangeStreamCaptureMode(&mode_);
  CUcontext popped;
  if (pushed_) TheDriver().cuCtxPopCurrent(&popped);
}

cudaStream_t CopyStream(int device) {
  static Mutex streams_mutex;
  static auto* streams JAXRING_PT_GUARDED_BY(streams_mutex) = new std::map<int, cudaStream_t>;
  MutexLock lock(streams_mutex);
  cudaStream_t& stream = (*streams)[device];
  if (stream == nullptr) JAXRING_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

}  // namespace jaxring::cuda
