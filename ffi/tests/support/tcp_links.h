// Makes an end of a link by TCP, of one end of a connection.
#pragma once

#include "network/system_network.h"

namespace jaxring::test {

inline void LinkByTcp(SystemNetwork& network, int peer, int channel, int fd, bool sending) {
  const LinkName link{peer, channel, sending};
  network.connectors().Offer("tcp", link, {});
  network.connectors().Prepare(link, "");
  network.AddLink(link, Descriptor(fd), 60);
}

}  // namespace jaxring::test
