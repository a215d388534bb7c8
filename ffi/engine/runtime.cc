#include "engine/runtime.h"

#include "base/mutex.h"

namespace jaxring {
namespace {
Mutex mutex;
std::atomic<Engine*> engine{nullptr};
}  // namespace

Engine& StartEngine(const EngineOptions& options) {
  MutexLock lock(mutex);
  if (engine.load() == nullptr) engine.store(new Engine(options));
  return *engine.load();
}

Engine* RunningEngine() { return engine.load(std::memory_order_acquire); }

}  // namespace jaxring
