// The process's engine. It is made once, when jaxring is first used, and is never destroyed, because XLA may call a
// handler or run a continuation until the process ends.
#pragma once

#include "engine/process_engine.h"

namespace jaxring {

// Makes the engine if there is none yet.
ProcessEngine& StartEngine(const EngineOptions& options);
// nullptr before StartEngine.
ProcessEngine* RunningEngine();

}  // namespace jaxring
