// Whether a process has begun an operation that this one waits in, by what its last heartbeat says.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/operation/operation.h"
#include "engine/peer.h"
#include "engine/records/recorder.h"

namespace jaxring {

// What was seen longer ago does not count: the process may have begun the operation since. So long a report takes from
// process to process at most.
inline constexpr int64_t kSeenMs = 10000;

// The time in ms since the last heartbeat of a process arrived.
int64_t SinceSaid(const ConnectedPeer& peer, Clock::time_point now);
// `age_ms` that a heartbeat gave, `since_ms` after it arrived.
uint32_t Older(uint32_t age_ms, int64_t since_ms);

// That `process` has not begun the operation `key`, which `recorder` has. Empty if it has begun it, has left, or has
// not said enough for that to be certain.
std::optional<Behind> FindBehind(int process, const ConnectedPeer& peer, uint64_t key, const Recorder& recorder,
                                 Clock::time_point now);

}  // namespace jaxring
