#include "transport/core/poller.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <vector>

#include "base/thread_name.h"

namespace jaxring {
namespace {
constexpr int kTickMs = 50;
}

Poller::Poller(std::function<void()> tick)
    : tick_(std::move(tick)),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (epoll_fd_ < 0 || event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "starting the poller");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = event_fd_;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, event_fd_, &event);
  thread_ = std::thread([this] { Run(); });
}

void Poller::Stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
  Kick();
  thread_.join();
  decltype(handlers_) dropped;  // destroyed when the lock is free
  MutexLock lock(mutex_);
  dropped.swap(handlers_);
}

Poller::~Poller() {
  Stop();
  close(epoll_fd_);
  close(event_fd_);
}

void Poller::Add(int fd, uint32_t events, std::shared_ptr<Handler> handler) {
  {
    MutexLock lock(mutex_);
    handlers_[fd] = std::move(handler);
  }
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "watching a socket");
  }
}

void Poller::Change(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  MutexLock lock(mutex_);  // against Replace
  // A descriptor without events is removed: epoll would report a broken connection again and again.
  if (events == 0) {
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  } else if (epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) != 0 && errno == ENOENT) {
    epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
  }
}

void Poller::Remove(int fd) {
  std::shared_ptr<Handler> dropped;  // destroyed when the lock is free
  MutexLock lock(mutex_);
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  const auto it = handlers_.find(fd);
  if (it == handlers_.end()) return;
  dropped = std::move(it->second);
  handlers_.erase(it);
}

void Poller::Replace(int fd, int by) {
  MutexLock lock(mutex_);
  // epoll watches what the descriptor stands for, and would go on if another descriptor stands for the same.
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
  if (dup3(by, fd, O_CLOEXEC) < 0) throw std::system_error(errno, std::generic_category(), "replacing a socket");
}

void Poller::TellResumed(int fd) {
  {
    MutexLock lock(mutex_);
    resumed_.push_back(fd);
  }
  Kick();
}

void Poller::Clear() {
  decltype(handlers_) dropped;
  {
    MutexLock lock(mutex_);
    dropped.swap(handlers_);
    for (const auto& entry : dropped) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, entry.first, nullptr);
  }
  // The thread may be inside a handler. Waiting for its round to end also keeps descriptor numbers from being reused
  // before, since the handlers own the descriptors.
  const uint64_t turn = turns_.load(std::memory_order_acquire);
  while (turns_.load(std::memory_order_acquire) == turn) {
    Kick();
    std::this_thread::yield();
  }
}

void Poller::Kick() {
  if (kicked_.exchange(true)) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(event_fd_, &one, sizeof one);
}

void Poller::Run() {
  NameThread("jaxring-io");
  std::array<epoll_event, 32> events;
  while (!stop_) {
    int n = epoll_wait(epoll_fd_, events.data(), events.size(), kTickMs);
    bool kicked = false;
    for (int i = 0; i < n; ++i) {
      int fd = events[i].data.fd;
      if (fd == event_fd_) {
        uint64_t count;
        [[maybe_unused]] ssize_t got = read(event_fd_, &count, sizeof count);
        kicked_ = false;
        kicked = true;
        continue;
      }
      std::shared_ptr<Handler> handler;
      {
        MutexLock lock(mutex_);
        auto it = handlers_.find(fd);
        if (it != handlers_.end()) handler = it->second;
      }
      if (handler) handler->OnEvents(events[i].events);
    }
    if (kicked) {
      std::vector<std::shared_ptr<Handler>> all, resumed;
      {
        MutexLock lock(mutex_);
        for (auto& entry : handlers_) all.push_back(entry.second);
        for (int fd : resumed_) {
          if (auto it = handlers_.find(fd); it != handlers_.end()) resumed.push_back(it->second);
        }
        resumed_.clear();
      }
      for (auto& handler : all) handler->OnKick();
      for (auto& handler : resumed) handler->OnResumed();
    }
    tick_();
    turns_.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace jaxring
