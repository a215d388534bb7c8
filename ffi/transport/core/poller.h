// One thread per engine that waits for sockets: it moves TCP bytes that could not be moved at once and sees peers die.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

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
  };

  // `tick` runs on the poller's thread every 50 ms or so: deadlines.
  explicit Poller(std::function<void()> tick);
  ~Poller();
  Poller(const Poller&) = delete;

  // The poller owns the handler from now on, the handler its descriptor. `events` as epoll_ctl takes them.
  void Add(int fd, uint32_t events, std::shared_ptr<Handler> handler);
  void Change(int fd, uint32_t events);
  void Remove(int fd);
  // Drops all handlers; when it returns, none runs any more. Not for the poller's thread.
  void Clear();
  // Any thread: have every handler's OnKick called soon.
  void Kick();

 private:
  void Run();

  std::function<void()> tick_;
  int epoll_fd_, event_fd_;
  std::atomic<bool> stop_{false}, kicked_{false};
  std::atomic<uint64_t> turns_{0};  // rounds of the thread that have ended
  std::mutex mutex_;
  std::unordered_map<int, std::shared_ptr<Handler>> handlers_;
  std::thread thread_;
};

}  // namespace jaxring
