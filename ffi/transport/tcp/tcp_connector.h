// Links by TCP: the connection over which two processes have agreed on a link becomes the link, encrypted where there
// is a key. So the offers have nothing to say; making one gets the memory, before the other end relies on it.
#pragma once

#include <memory>

#include "transport/core/connector.h"

namespace jaxring {

class TcpConnector final : public Connector {
 public:
  explicit TcpConnector(const ConnectorOptions& options) : options_(options) {}
  std::unique_ptr<OfferedLink> Offer(const LinkName& link, const Place& place) override;

 private:
  class Offered;
  const ConnectorOptions options_;
};

}  // namespace jaxring
