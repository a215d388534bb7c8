// Whether a process has begun an operation that this one waits in, by what its last heartbeat says.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/operation/operation.h"
#include "engine/records/recorder.h"
#include "network/peers/peer.h"

namespace jaxring {

// That `process` has not begun the operation `key`, which `recorder` has. Empty if it has begun it, has left, or has
// not said enough for that to be certain.
std::optional<Behind> FindBehind(int process, const ConnectedPeer& peer, uint64_t key, const Recorder& recorder,
                                 Clock::time_point now);

// All processes that have not begun `op`, which this process has, as far as the heartbeats of `peers` say.
std::vector<Behind> FindAllBehind(const std::map<int, ConnectedPeer>& peers, const Operation& op,
                                  const Recorder& recorder, Clock::time_point now);

// Sentences about them for the error of `op`, each with a space before it.
std::string DescribeBehind(const std::vector<Behind>& all, const Operation& op, Clock::time_point now);

}  // namespace jaxring
