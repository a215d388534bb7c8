// What carries one link's messages through a plugin's connection; PluginLinks' thread calls it.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transport/core/link.h"
#include "transport/core/poller.h"
#include "transport/plugin/net_plugin.h"

namespace jaxring {

class PluginPump : public Poller::Handler {
 public:
  using Clock = std::chrono::steady_clock;
  // `link` is kept alive; `end` is its.
  PluginPump(std::shared_ptr<NetPlugin> plugin, void* comm, int fd, Poller* poller, std::shared_ptr<void> link,
             LinkEnd* end, size_t message_bytes, Notifier* own_doorbell, OnEnd on_end);
  ~PluginPump() override;
  // The plugin's thread: does what can be done now; true if anything moved.
  bool Turn();
  // The poller's thread: the peer said something over the connection, or is gone.
  void OnEvents(uint32_t events) override;
  // Any thread: the process ends in good order.
  virtual void SayGoodbye() = 0;
  bool ended() const { return end_->closed.load(std::memory_order_acquire); }

 protected:
  static constexpr size_t kBuffers = 8;  // requests in flight: plugins are safe with 32
  struct Buffer {
    char* data = nullptr;
    size_t bytes = 0;         // of the message, where there is one
    void* request = nullptr;  // in flight
  };
  // Under the lock; throw what the plugin says.
  virtual bool Advance() = 0;
  // Nothing more can come or go now that the peer has gone.
  virtual bool Finished() = 0;
  void End(const std::string& why);
  // Both sides of what owns the registration: the connection is the derived pump's, which closes it.
  void Register();
  void Deregister();

  const std::shared_ptr<NetPlugin> plugin_;
  void* const comm_;
  const int fd_;
  Poller* poller_;
  std::shared_ptr<void> link_;
  LinkEnd* end_;
  const size_t message_bytes_;  // header and payload
  Notifier* own_doorbell_;
  OnEnd on_end_;
  std::mutex mutex_;
  std::vector<char> memory_;
  void* registration_ = nullptr;
  std::array<Buffer, kBuffers> buffers_;
  uint64_t count_ = 0;       // messages that were sent or received
  Clock::time_point moved_;  // the last time that one was
  // What the peer said: that it ends, having sent so many messages, or nothing.
  std::array<char, sizeof(uint64_t)> word_{};
  size_t heard_ = 0;
  bool gone_ = false;
};

class PluginSendPump final : public PluginPump {
 public:
  PluginSendPump(std::shared_ptr<NetPlugin> plugin, void* comm, int fd, Poller* poller,
                 const std::shared_ptr<SendLink>& link, Notifier* own_doorbell, OnEnd on_end);
  ~PluginSendPump() override;
  // Waits for what was published to leave, some seconds at most.
  void SayGoodbye() override;

 private:
  bool Advance() override;
  bool Finished() override { return true; }
  bool Next(Buffer* buffer);

  RingReceiver ll_, simple_;  // the pump empties the rings that the lanes fill
  size_t next_ = 0, oldest_ = 0;
  uint64_t taken_ = 0;   // messages from the rings
  bool filled_ = false;  // buffer `next_` holds a message that the plugin has not taken
  size_t in_flight_ = 0;
};

class PluginRecvPump final : public PluginPump {
 public:
  PluginRecvPump(std::shared_ptr<NetPlugin> plugin, void* comm, int fd, Poller* poller,
                 const std::shared_ptr<RecvLink>& link, Notifier* own_doorbell, OnEnd on_end);
  ~PluginRecvPump() override;
  void SayGoodbye() override;

 private:
  bool Advance() override;
  bool Finished() override;
  bool Deliver(Buffer& buffer);

  RingSender ll_, simple_;  // the pump fills the rings that the lanes empty
  size_t next_ = 0, oldest_ = 0, posted_ = 0;
  bool arrived_ = false;  // buffer `oldest_` holds a message that its ring has no room for
};

}  // namespace jaxring
