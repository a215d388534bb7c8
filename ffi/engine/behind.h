// Whether a process has begun an operation that this one waits in, by what its last heartbeat says.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/operation/operation.h"
#include "engine/peer.h"
#include "engine/records/recorder.h"

namespace jaxring {

// That `process` has not begun the operation `key`, which `recorder` has. Empty if it has begun it, has left, or has
// not said enough for that to be certain.
std::optional<Behind> FindBehind(int process, const ConnectedPeer& peer, uint64_t key, const Recorder& recorder,
                                 Clock::time_point now);

}  // namespace jaxring
