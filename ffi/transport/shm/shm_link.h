// Links within a host: the sender's rings, mapped by the receiver too, and each process's doorbell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/core/link.h"

namespace jaxring {

// A sending link in new memory, whose descriptor the peer maps. It has no doorbell until the peer has done so.
std::shared_ptr<SendLink> MakeShmSendLink(uint32_t slot_bytes);

// The other end of a peer's: its rings, its blocks and its doorbell, by paths such as /proc/<pid>/fd/<n>.
std::shared_ptr<RecvLink> OpenShmRecvLink(const std::string& ring_path, const std::string& blocks_path,
                                          const std::string& bell_path, uint32_t slot_bytes);

}  // namespace jaxring
