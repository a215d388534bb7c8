// Links by a network plugin: pumps carry a ring's messages over a plugin's connection into the peer's ring.
//
// A plugin has no events, so one thread polls all connections in turn: without pause while anything moves, less and
// less often while nothing does. A message is sent as wire header and payload in one piece, from buffers that are
// registered once: receives have to be posted before the next message is known.
//
// Plugins do not report a dead peer. So the TCP connection over which the processes agreed on the link stays open as a
// control connection. Its end means that the peer is gone, and a sender that ends in good order reports over it how
// many messages it has sent.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/condition_variable.h"
#include "base/mutex.h"
#include "transport/core/connector.h"
#include "transport/plugin/net_plugin.h"

namespace jaxring {

// The pumps close their links at the peer's goodbye.
inline constexpr Transport kPlugin{.name = "plugin"};

std::unique_ptr<Connector> MakePluginConnector(const ConnectorOptions& options);

class PluginPump;

class PluginConnector final : public Connector {
 public:
  explicit PluginConnector(const ConnectorOptions& options)
      : slot_bytes_(options.slot_bytes), own_doorbell_(options.own_doorbell) {}
  ~PluginConnector() override;

  const Transport& transport() const override { return kPlugin; }
  std::string Load(const std::string& name) override { return LoadVersion(name, 0); }
  // The same with one version of the interface; 0: the newest that the plugin has.
  std::string LoadVersion(const std::string& name, int only);
  std::unique_ptr<OfferedLink> Offer(const LinkName& link, const Place& place) override;
  // Wakes the thread, since there is something for it to do.
  void Wake();

 private:
  class Offered;
  // Has the thread serve it.
  void Serve(std::shared_ptr<PluginPump> pump);
  void Run();

  uint32_t slot_bytes_;
  Notifier* own_doorbell_;
  Mutex mutex_;
  ConditionVariable wake_;
  std::shared_ptr<NetPlugin> plugin_ JAXRING_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PluginPump>> pumps_ JAXRING_GUARDED_BY(mutex_);
  std::thread thread_;
  std::atomic<bool> stop_{false}, woken_{false};
};

}  // namespace jaxring
