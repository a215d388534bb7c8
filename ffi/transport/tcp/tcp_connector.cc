#include "transport/tcp/tcp_connector.h"

#include <utility>

#include "transport/tcp/tcp.h"
#include "transport/tcp/tls.h"

namespace jaxring {

class TcpConnector::Offered final : public OfferedLink {
 public:
  Offered(const ConnectorOptions& options, const LinkName& link)
      : options_(options), link_(link), memory_(LinkMemory::Anonymous(options.slot_bytes)) {}

  void Prepare(const std::string&) override {}

  JoinedLink Finish(Agreed agreed) override {
    std::unique_ptr<Stream> stream = MakeStream(std::move(agreed.socket), agreed.key, link_.sending, agreed.timeout_s);
    if (agreed.go_on) stream = agreed.go_on(std::move(stream));
    stream = WithFaults(std::move(stream), options_.faults, FaultsOf(link_.peer, link_.channel));
    OnEnd on_end = [ended = std::move(agreed.on_end)](const std::string& why, Ending ending) {
      ended(EndOfSocket(why, ending), ending);
    };
    JoinedLink joined;
    if (link_.sending) {
      joined.send = MakeTcpSendLink(std::move(stream), agreed.poller, std::move(memory_), options_.own_doorbell,
                                    std::move(on_end));
      joined.say_goodbye = [link = joined.send] { SayTcpGoodbye(*link); };
    } else {
      joined.recv = MakeTcpRecvLink(std::move(stream), agreed.poller, options_.busy_pollers, std::move(memory_),
                                    options_.own_doorbell, std::move(on_end));
      joined.say_goodbye = [link = joined.recv] { SayTcpGoodbye(*link); };
    }
    return joined;
  }

 private:
  const ConnectorOptions& options_;
  const LinkName link_;
  LinkMemory memory_;
};

std::unique_ptr<OfferedLink> TcpConnector::Offer(const LinkName& link, const Place&) {
  return std::make_unique<Offered>(options_, link);
}

std::unique_ptr<Connector> MakeTcpConnector(const ConnectorOptions& options) {
  return std::make_unique<TcpConnector>(options);
}

}  // namespace jaxring
