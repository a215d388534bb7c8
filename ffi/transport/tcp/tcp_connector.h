// Links by TCP: the connection over which two processes have agreed on a link becomes the link, encrypted where there
// is a key. So the offers have nothing to say; making one gets the memory, before the other end relies on it.
#pragma once

#include <memory>

#include "transport/core/connector.h"

namespace jaxring {

// A FaultyStream injects the faults. The pumps end with their socket, which at the peer's goodbye is still open.
inline constexpr Transport kTcp{.name = "tcp", .closed_at_goodbye = true, .injects_faults = true};

std::unique_ptr<Connector> MakeTcpConnector(const ConnectorOptions& options);

class TcpConnector final : public Connector {
 public:
  explicit TcpConnector(const ConnectorOptions& options) : options_(options) {}
  const Transport& transport() const override { return kTcp; }
  std::unique_ptr<OfferedLink> Offer(const LinkName& link, const Place& place) override;

 private:
  class Offered;
  const ConnectorOptions options_;
};

}  // namespace jaxring
