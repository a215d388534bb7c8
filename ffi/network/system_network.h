// The network of a process whose connections are the system's: shared memory, sockets, RDMA devices and plugins.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "network/connectors.h"
#include "network/network.h"
#include "network/paths.h"
#include "transport/core/poller.h"

namespace jaxring {

struct NetworkOptions {
  uint32_t slot_bytes;
  double link_timeout_s;  // the link to a peer's host counts as cut when that host has acknowledged nothing for so long
  FaultPlan faults;       // to inject into the connections, for tests
};

class SystemNetwork final : public Network {
 public:
  SystemNetwork(const NetworkOptions& options, NetworkClient* client);
  ~SystemNetwork() override;

  // Starts the thread that polls, which calls the client, and ends it.
  void Start() override;
  void Stop() override;
  // The handlers of the poller look at their connections, too.
  void Kick() override { poller_->Kick(); }
  std::unique_ptr<Doorbell> MakeDoorbell() const override { return Doorbell::Create(); }
  void SayGoodbyes() override;
  bool Settled() const override { return paths_.Settled(); }
  void EndPaths() override { paths_.Close(); }
  std::pair<int, int> CountPaths() const override { return paths_.Count(); }

  Paths& paths() { return paths_; }
  Connectors& connectors() { return connectors_; }
  // Finishes a link, of which `connectors` has made this end, and puts it into service. Returns a description of the
  // connection, or "". The rest as for Agreed; with `path`, a name that the other end gives, too, the link can go on
  // over another path, where the transport can. Throws as Connectors and Paths do; the link then ends at both ends.
  std::string AddLink(const LinkName& link, Descriptor socket, double timeout_s, const std::string& key = "",
                      const std::string& path = "");
  // Adds a control connection with a process. `path` as for AddLink; `dialled`: this process has made the connection.
  void AddControl(int process, std::unique_ptr<Stream> stream, const std::string& path = "", bool dialled = false);

 private:
  // Looks for ports and paths that have failed.
  void CheckConnections(Time now) override;
  void EndConnections() override;
  // Registers the goodbye that a link sends when this process ends; sends it at once if it is already ending.
  void AddGoodbye(const std::function<void()>& say);

  const NetworkOptions options_;
  NetworkClient* const client_;
  Paths paths_;
  Mutex goodbyes_mutex_;
  // Each sends the goodbye of one link.
  std::vector<std::function<void()>> goodbyes_ JAXRING_GUARDED_BY(goodbyes_mutex_);
  bool said_goodbye_ JAXRING_GUARDED_BY(goodbyes_mutex_) = false;
  Connectors connectors_;
  std::unique_ptr<Poller> poller_;  // the last member: its thread uses everything above
};

}  // namespace jaxring
