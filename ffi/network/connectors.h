// The transports that links can be made by, and the links that are being made.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "transport/core/connector.h"

namespace jaxring {

// All functions but the last three throw what a Connector's throw.
class Connectors {
 public:
  explicit Connectors(const ConnectorOptions& options);

  // Has the transport of that name load something: see Connector.
  std::string Load(const std::string& transport, const std::string& what);
  // Makes an end of a link by that transport; returns what the peer needs to know. An earlier attempt at the same end
  // is forgotten.
  std::string Offer(const std::string& transport, const LinkName& link, const Connector::Place& place);
  // Gives an end the peer's offer.
  void Prepare(const LinkName& link, const std::string& peer_offer);
  // Finishes an end, or forgets it and throws.
  JoinedLink Finish(const LinkName& link, Agreed agreed);
  // Drops an end that is not finished, if there is one.
  void Forget(const LinkName& link);
  void CheckPorts();
  // A new epoch begins.
  void Clear();

 private:
  Connector& Of(const std::string& transport);
  std::shared_ptr<OfferedLink> Find(const LinkName& link) const;

  const std::map<std::string, std::unique_ptr<Connector>> all_;
  mutable Mutex mutex_;
  // After the connectors, whose links they are. One is destroyed when the mutex is free, which may take long.
  std::map<LinkName, std::shared_ptr<OfferedLink>> offered_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
