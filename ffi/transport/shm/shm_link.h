// Links within a host: the receiver maps the sender's rings, and each end rings the other process's doorbell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/core/link.h"

namespace jaxring {

// A sending link in new memory, whose descriptor the peer maps. It has no doorbell before the peer has mapped it.
std::shared_ptr<SendLink> MakeShmSendLink(uint32_t slot_bytes);

// The receiving end of a peer's link: its rings, its blocks and its doorbell, by paths such as /proc/<pid>/fd/<n>.
std::shared_ptr<RecvLink> OpenShmRecvLink(const std::string& ring_path, const std::string& blocks_path,
                                          const std::string& bell_path, uint32_t slot_bytes);

}  // namespace jaxring
