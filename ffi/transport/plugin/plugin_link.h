// Links by a network plugin: pumps that carry a ring's messages through a plugin's connection into the peer's ring.
//
// A plugin has no events, so one thread asks all connections in turn, busily while anything moves and ever less often
// while nothing does. A message goes as its wire header and payload in one piece, through buffers of our own that are
// registered once: receives have to be posted before it is known what comes.
//
// Plugins say nothing of a dead peer. So the TCP connection over which the processes agreed stays open beside the link:
// its end means that the peer is gone, and a sender that ends in good order says over it how many messages it has sent.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "transport/core/link.h"
#include "transport/core/poller.h"
#include "transport/plugin/net_plugin.h"

namespace jaxring {

class PluginPump;

class PluginLinks {
 public:
  PluginLinks(uint32_t slot_bytes, Notifier* own_doorbell) : slot_bytes_(slot_bytes), own_doorbell_(own_doorbell) {}
  ~PluginLinks();

  // Loads the plugin, once; returns it in words. All throw std::runtime_error with a sentence.
  std::string Load(const std::string& name, int only = 0);
  // As VerbsJoin's: see jaxring/world/links.py for the order.
  std::string Offer(int peer, int channel, bool sending);
  void Prepare(int peer, int channel, bool sending, const std::string& peer_offer);
  using Joined = JoinedLink;
  // Takes `fd`, also when it throws.
  Joined Finish(Poller* poller, int peer, int channel, bool sending, int fd, double timeout_s, OnEnd on_end);
  // Somebody has something for the thread to do.
  void Wake();

 private:
  struct Pending {
    std::shared_ptr<NetPlugin> plugin;
    void* listening = nullptr;
    std::array<char, NetPlugin::kHandleBytes> handle{};
    int device = 0;
    ~Pending();
  };
  using Key = std::tuple<int, int, bool>;
  std::shared_ptr<Pending> Take(const Key& key, bool keep);
  void* Join(Pending& pending, bool sending, double timeout_s);
  void Run();

  uint32_t slot_bytes_;
  Notifier* own_doorbell_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::shared_ptr<NetPlugin> plugin_;
  std::map<Key, std::shared_ptr<Pending>> pending_;
  std::vector<std::shared_ptr<PluginPump>> pumps_;
  std::thread thread_;
  std::atomic<bool> stop_{false}, woken_{false};
};

}  // namespace jaxring
