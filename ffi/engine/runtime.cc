#include "engine/runtime.h"

#include "base/mutex.h"

namespace jaxring {
namespace {
Mutex mutex;
std::atomic<ProcessEngine*> engine{nullptr};
}  // namespace

ProcessEngine& StartEngine(const EngineOptions& options) {
  MutexLock lock(mutex);
  if (engine.load() == nullptr) engine.store(new ProcessEngine(options));
  return *engine.load();
}

ProcessEngine* RunningEngine() { return engine.load(std::memory_order_acquire); }

}  // namespace jaxring
