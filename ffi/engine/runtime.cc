#include "engine/runtime.h"

#include <mutex>

namespace jaxring {
namespace {
std::mutex mutex;
std::atomic<Engine*> engine{nullptr};
}  // namespace

Engine& StartEngine(const EngineOptions& options) {
  std::lock_guard lock(mutex);
  if (engine.load() == nullptr) engine.store(new Engine(options));
  return *engine.load();
}

Engine* RunningEngine() { return engine.load(std::memory_order_acquire); }

}  // namespace jaxring
