// Carries one link's messages over a plugin's connection. The thread of PluginConnector calls it.
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

#include "base/descriptor.h"
#include "base/mutex.h"
#include "transport/core/link.h"
#include "transport/core/poller.h"
#include "transport/plugin/net_plugin.h"

namespace jaxring {

class PluginPump : public Poller::Handler {
 public:
  using Clock = std::chrono::steady_clock;
  // Keeps `link` alive, which owns `end`.
  PluginPump(std::shared_ptr<NetPlugin> plugin, void* comm, Descriptor socket, Poller* poller,
             std::shared_ptr<void> link, LinkEnd* end, size_t message_bytes, Notifier* own_doorbell, OnEnd on_end);
  // Called on the plugin's thread: makes all progress that is possible now. Returns whether anything moved.
  bool Turn();
  // Called on the poller's thread: the peer has sent something on the control connection, or has closed it.
  void OnEvents(uint32_t events) override;
  // This process ends in good order. Any thread may call it.
  virtual void SayGoodbye() = 0;
  bool ended() const { return end_->closed.load(std::memory_order_acquire); }

 protected:
  static constexpr size_t kBuffers = 8;  // requests in flight; plugins must support 32
  struct Buffer {
    char* data = nullptr;
    size_t bytes = 0;         // of the message, where there is one
    void* request = nullptr;  // in flight
  };
  // Called under the lock. Throw the plugin's errors.
  virtual bool Advance() JAXRING_REQUIRES(mutex_) = 0;
  // Whether nothing more can arrive or leave now that the peer is gone.
  virtual bool Finished() JAXRING_REQUIRES(mutex_) = 0;
  void End(const std::string& why) JAXRING_REQUIRES(mutex_);
  // Register and deregister the buffers. The derived pump owns the connection and closes it in between.
  void Register();
  void Deregister();

  const std::shared_ptr<NetPlugin> plugin_;
  void* const comm_;
  const Descriptor socket_;  // the control connection
  Poller* poller_;
  std::shared_ptr<void> link_;
  LinkEnd* end_;
  const size_t message_bytes_;  // header and payload
  Notifier* own_doorbell_;
  OnEnd on_end_;
  Mutex mutex_;
  std::vector<char> memory_;
  void* registration_ = nullptr;
  std::array<Buffer, kBuffers> buffers_ JAXRING_GUARDED_BY(mutex_);
  uint64_t count_ JAXRING_GUARDED_BY(mutex_) = 0;       // messages sent or received
  Clock::time_point moved_ JAXRING_GUARDED_BY(mutex_);  // when the last one was
  // The peer's goodbye, which holds the number of messages that it has sent, or the part of it that has arrived.
  std::array<char, sizeof(uint64_t)> word_ JAXRING_GUARDED_BY(mutex_){};
  size_t goodbye_bytes_ JAXRING_GUARDED_BY(mutex_) = 0;
  bool gone_ JAXRING_GUARDED_BY(mutex_) = false;
};

class PluginSendPump final : public PluginPump {
 public:
  PluginSendPump(std::shared_ptr<NetPlugin> plugin, void* comm, Descriptor socket, Poller* poller,
                 const std::shared_ptr<SendLink>& link, Notifier* own_doorbell, OnEnd on_end);
  ~PluginSendPump() override;
  // Waits until all published messages have been sent, for some seconds at most.
  void SayGoodbye() override;

 private:
  bool Advance() override JAXRING_REQUIRES(mutex_);
  bool Finished() override { return true; }
  bool Next(Buffer* buffer) JAXRING_REQUIRES(mutex_);

  RingReceiver ll_, simple_;  // the pump empties the rings that the lanes fill
  size_t next_ JAXRING_GUARDED_BY(mutex_) = 0;
  size_t oldest_ JAXRING_GUARDED_BY(mutex_) = 0;
  uint64_t taken_ JAXRING_GUARDED_BY(mutex_) = 0;   // messages from the rings
  bool filled_ JAXRING_GUARDED_BY(mutex_) = false;  // buffer `next_` holds a message that the plugin has not taken
  size_t in_flight_ JAXRING_GUARDED_BY(mutex_) = 0;
};

class PluginRecvPump final : public PluginPump {
 public:
  PluginRecvPump(std::shared_ptr<NetPlugin> plugin, void* comm, Descriptor socket, Poller* poller,
                 const std::shared_ptr<RecvLink>& link, Notifier* own_doorbell, OnEnd on_end);
  ~PluginRecvPump() override;
  void SayGoodbye() override;

 private:
  bool Advance() override JAXRING_REQUIRES(mutex_);
  bool Finished() override JAXRING_REQUIRES(mutex_);
  bool Deliver(Buffer& buffer) JAXRING_REQUIRES(mutex_);

  RingSender ll_, simple_;  // the pump fills the rings that the lanes empty
  size_t next_ JAXRING_GUARDED_BY(mutex_) = 0;
  size_t oldest_ JAXRING_GUARDED_BY(mutex_) = 0;
  size_t posted_ JAXRING_GUARDED_BY(mutex_) = 0;
  bool arrived_ JAXRING_GUARDED_BY(mutex_) = false;  // buffer `oldest_` holds a message that its ring has no room for
};

}  // namespace jaxring
