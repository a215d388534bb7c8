// A transport whose links are set up by offers: each end makes one, the processes exchange them over an authenticated
// connection, and each end then finishes its side. ffi/network/transports.cc lists the transports of this kind.
#pragma once

#include <map>
#include <stdexcept>
#include <string>

#include "transport/core/busy_pollers.h"
#include "transport/core/link.h"
#include "transport/core/poller.h"

namespace jaxring {

class OfferedTransport {
 public:
  // Where a link's end is to be, by names that the transport defines.
  using Place = std::map<std::string, std::string>;

  virtual ~OfferedTransport() = default;
  // All of these throw std::runtime_error, and then drop the link. jaxring/world/links.py has the order of the calls.
  // Loads what the transport needs, once, and returns a description of it.
  virtual std::string Load(const std::string& what) {
    throw std::runtime_error("this transport loads nothing, so not " + what + " either");
  }
  // Makes this end of a link; returns what the peer needs to know.
  virtual std::string Offer(int peer, int channel, bool sending, const Place& place) = 0;
  // Gives this end the peer's offer.
  virtual void Prepare(int peer, int channel, bool sending, const std::string& peer_offer) = 0;
  // Connects. Owns `fd`, the socket of the authenticated connection, even if it throws.
  virtual JoinedLink Finish(Poller* poller, int peer, int channel, bool sending, int fd, double timeout_s,
                            OnEnd on_end) = 0;
  // Called regularly: closes links whose ports are down.
  virtual void CheckPorts() {}
};

// What all of them are made of; the engine owns what is pointed to.
struct OfferedOptions {
  uint32_t slot_bytes;
  Notifier* own_doorbell;
  BusyPollers* busy_pollers;
};

}  // namespace jaxring
