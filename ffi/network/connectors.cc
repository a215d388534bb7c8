#include "network/connectors.h"

#include <stdexcept>
#include <utility>

#include "transport/plugin/plugin_connector.h"
#include "transport/shm/shm_connector.h"
#include "transport/tcp/tcp_connector.h"
#include "transport/verbs/verbs_connector.h"

namespace jaxring {
namespace {

// One of each, by the name that jaxring/world/transports knows it by.
std::map<std::string, std::unique_ptr<Connector>> MakeAll(const ConnectorOptions& options) {
  std::map<std::string, std::unique_ptr<Connector>> all;
  all.emplace("plugin", std::make_unique<PluginConnector>(options));
  all.emplace("shm", std::make_unique<ShmConnector>(options));
  all.emplace("tcp", std::make_unique<TcpConnector>(options));
  all.emplace("verbs", std::make_unique<VerbsConnector>(options));
  return all;
}

}  // namespace

Connectors::Connectors(const ConnectorOptions& options) : all_(MakeAll(options)) {}

Connector& Connectors::Of(const std::string& transport) {
  const auto it = all_.find(transport);
  if (it == all_.end()) throw std::runtime_error("there is no transport " + transport);
  return *it->second;
}

std::shared_ptr<OfferedLink> Connectors::Find(const LinkName& link) const {
  MutexLock lock(mutex_);
  const auto it = offered_.find(link);
  if (it == offered_.end()) throw std::runtime_error("no such link to that process is being made");
  return it->second;
}

std::string Connectors::Load(const std::string& transport, const std::string& what) { return Of(transport).Load(what); }

std::string Connectors::Offer(const std::string& transport, const LinkName& link, const Connector::Place& place) {
  Forget(link);  // so that its memory is free for the next
  std::shared_ptr<OfferedLink> made = Of(transport).Offer(link, place);
  std::string offer = made->offer();
  MutexLock lock(mutex_);
  offered_[link] = std::move(made);
  return offer;
}

void Connectors::Prepare(const LinkName& link, const std::string& peer_offer) { Find(link)->Prepare(peer_offer); }

JoinedLink Connectors::Finish(const LinkName& link, Agreed agreed) {
  const std::shared_ptr<OfferedLink> offered = Find(link);
  Forget(link);
  return offered->Finish(std::move(agreed));
}

void Connectors::Forget(const LinkName& link) {
  std::shared_ptr<OfferedLink> dropped;
  MutexLock lock(mutex_);
  if (auto node = offered_.extract(link)) dropped = std::move(node.mapped());
}

void Connectors::CheckPorts() {
  for (const auto& [name, connector] : all_) connector->CheckPorts();
}

void Connectors::Clear() {
  {
    decltype(offered_) dropped;
    MutexLock lock(mutex_);
    dropped.swap(offered_);
  }
  for (const auto& [name, connector] : all_) connector->Clear();
}

}  // namespace jaxring
