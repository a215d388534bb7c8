#include "network/connectors.h"

#include <stdexcept>
#include <utility>

// The transports: a line each, with the function of its folder that makes its connector.
#define JAXRING_TRANSPORTS(EACH) \
  EACH(MakePluginConnector)      \
  EACH(MakeShmConnector)         \
  EACH(MakeTcpConnector)         \
  EACH(MakeVerbsConnector)

namespace jaxring {

#define JAXRING_DECLARE(make) std::unique_ptr<Connector> make(const ConnectorOptions& options);
JAXRING_TRANSPORTS(JAXRING_DECLARE)
#undef JAXRING_DECLARE

namespace {

// One of each, by its transport's name.
std::map<std::string, std::unique_ptr<Connector>> MakeAll(const ConnectorOptions& options) {
  std::map<std::string, std::unique_ptr<Connector>> all;
#define JAXRING_LIST(make) make,
  for (const auto make : {JAXRING_TRANSPORTS(JAXRING_LIST)}) {
    auto connector = make(options);
    const std::string name(connector->transport().name);
    if (!all.emplace(name, std::move(connector)).second) throw std::logic_error("there are two transports " + name);
  }
#undef JAXRING_LIST
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
