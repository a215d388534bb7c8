// The engine's I/O thread. It moves TCP bytes that could not be moved at once and notices when a connection ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"

namespace jaxring {

class Poller {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Called on the poller's thread with epoll's event bits.
    virtual void OnEvents(uint32_t events) = 0;
    // Called on the poller's thread after Kick.
    virtual void OnKick() {}
    // Called on the poller's thread after TellResumed: the descriptor is of another connection, whose events are to be
    // asked for, or the connection has failed for good.
    virtual void OnResumed() {}
  };

  // `tick` runs on the poller's thread about every 50 ms. It checks deadlines.
  explicit Poller(std::function<void()> tick);
  ~Poller();
  Poller(const Poller&) = delete;
  // Ends the thread, and drops all handlers. Nothing is called any more; further calls have no effect.
  void Stop();

  // The poller owns the handler from now on, and the handler owns its descriptor. `events`: as for epoll_ctl.
  void Add(int fd, uint32_t events, std::shared_ptr<Handler> handler);
  void Change(int fd, uint32_t events);
  void Remove(int fd);
  // Makes `fd` a duplicate of the descriptor `by`, without events. Its handler stays.
  void Replace(int fd, int by);
  // Makes the poller's thread call OnResumed of this descriptor's handler soon. Any thread may call it.
  void TellResumed(int fd);
  // Drops all handlers. When it returns, none is running. Not to be called on the poller's thread.
  void Clear();
  // Makes the poller's thread call every handler's OnKick soon. Any thread may call it.
  void Kick();

 private:
  void Run();

  std::function<void()> tick_;
  int epoll_fd_, event_fd_;
  std::atomic<bool> stop_{false}, kicked_{false};
  std::atomic<uint64_t> turns_{0};  // loop rounds that the thread has finished
  Mutex mutex_;
  std::unordered_map<int, std::shared_ptr<Handler>> handlers_ JAXRING_GUARDED_BY(mutex_);
  std::vector<int> resumed_ JAXRING_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace jaxring
