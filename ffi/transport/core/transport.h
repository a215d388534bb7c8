// What the network does differently for the links of one transport and of another.
#pragma once

#include <string_view>

namespace jaxring {

// Each transport has one such record, in its own folder, which lives as long as the program: its links refer to it.
struct Transport {
  std::string_view name;  // jaxring/world/transports knows it by the same
  // Both ends of a link are one memory. What a peer has sent has arrived, then, and nothing on the link says that the
  // peer is gone: the network closes it when the control connection says so.
  bool shares_memory = false;
  // The network also closes the links with a peer that has ended in good order, those from it once they are complete.
  // Where this is false and no memory is shared, the transport closes them itself.
  bool closed_at_goodbye = false;
  // Its connections suffer the faults that tests ask for, so the messages in its rings do not.
  bool injects_faults = false;
};

}  // namespace jaxring
