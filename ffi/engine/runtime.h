// The engine that serves this process. It is made once, when jaxring is first used, and lives until the process ends:
// XLA may call a handler or run a continuation at any time up to the last moment.
#pragma once

#include "engine/engine.h"

namespace jaxring {

// Makes the engine if there is none yet.
Engine& StartEngine(const EngineOptions& options);
// nullptr before StartEngine.
Engine* RunningEngine();

}  // namespace jaxring
