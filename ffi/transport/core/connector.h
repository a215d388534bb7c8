// How two processes make a link, whatever carries it: each end makes an offer, the processes exchange their offers over
// an authenticated connection, and each end then finishes its side. Each folder of ffi/transport/ has a connector and a
// record of its transport; ffi/network/connectors.cc lists them. jaxring/world/links.py has the order of the calls.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "base/descriptor.h"
#include "transport/core/busy_pollers.h"
#include "transport/core/doorbell.h"
#include "transport/core/faults.h"
#include "transport/core/link.h"
#include "transport/core/poller.h"
#include "transport/core/transport.h"

namespace jaxring {

// An end of a link in this process.
struct LinkName {
  int peer = 0, channel = 0;
  bool sending = false;
  bool operator<(const LinkName& other) const {
    return std::tie(peer, channel, sending) < std::tie(other.peer, other.channel, other.sending);
  }
};

// What finishes a link: the connection over which the two processes have agreed on it, a non-blocking socket, and what
// the network says of it.
struct Agreed {
  Poller* poller;
  Descriptor socket;
  double timeout_s;  // by then the other end has done the same, or never does
  std::string key;   // of TLS; "": the settings do not ask for TLS
  OnEnd on_end;
  // Has a connection go on over another path when its own fails. Null where that is not asked for.
  std::function<std::unique_ptr<Stream>(std::unique_ptr<Stream>)> go_on;
};

// This end of a link, which the peer does not know of yet or has not finished. If it is destroyed before Finish, the
// link is forgotten. The functions throw std::runtime_error and std::bad_alloc.
class OfferedLink {
 public:
  virtual ~OfferedLink() = default;
  // What the peer needs to know.
  const std::string& offer() const { return offer_; }
  // Gives this end the peer's offer: from now on it can receive.
  virtual void Prepare(const std::string& peer_offer) = 0;
  // Connects. Called once.
  virtual JoinedLink Finish(Agreed agreed) = 0;

 protected:
  std::string offer_;
};

class Connector {
 public:
  // Where a link's end is to be, by names that the transport defines.
  using Place = std::map<std::string, std::string>;

  virtual ~Connector() = default;
  virtual const Transport& transport() const = 0;
  // Loads what the transport needs, once, and returns a description of it. Throws std::runtime_error.
  virtual std::string Load(const std::string& what) {
    throw std::runtime_error("this transport loads nothing, so not " + what + " either");
  }
  // Makes an end of a link, to be destroyed before this. Throws runtime_error, invalid_argument for `place`, bad_alloc.
  virtual std::unique_ptr<OfferedLink> Offer(const LinkName& link, const Place& place) = 0;
  // Called regularly: closes links whose ports are down.
  virtual void CheckPorts() {}
  // A new epoch begins, and all links are dropped: drops what is kept for them.
  virtual void Clear() {}
};

// What all of them are made of; the network owns what is pointed to.
struct ConnectorOptions {
  uint32_t slot_bytes;
  Doorbell* own_doorbell;
  BusyPollers* busy_pollers;
  FaultPlan faults;
};

}  // namespace jaxring
