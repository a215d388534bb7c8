// Connections with the processes that an engine works with, and what becomes of operations when one of these is gone.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/engine.h"

namespace jaxring {
namespace {

constexpr auto kCrashGrace = std::chrono::milliseconds(100);
constexpr const char* kNoWord = " without a word";

class PeerWatch final : public Poller::Handler {
 public:
  PeerWatch(Engine* engine, int process, int fd) : engine_(engine), process_(process), fd_(fd) {}
  ~PeerWatch() override { close(fd_); }
  void OnEvents(uint32_t) override {
    char byte;
    ssize_t n = recv(fd_, &byte, 1, MSG_DONTWAIT);
    if (n > 0) goodbye_ = true;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    engine_->poller().Remove(fd_);
    engine_->PeerGone(process_, "its process ended", goodbye_);
  }
  void SayGoodbye() {
    const char byte = 'b';
    [[maybe_unused]] ssize_t n = send(fd_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

 private:
  Engine* engine_;
  int process_, fd_;
  bool goodbye_ = false;
};

}  // namespace

void Engine::PeerGone(int process, const std::string& reason, bool goodbye) {
  if (!goodbye) NoteCrash(process, reason + kNoWord);
  links_.ClosePeer(process, reason);
  bell_->NotifyAll();
}

void Engine::NoteCrash(int process, const std::string& reason) {
  std::lock_guard lock(mutex_);
  crashes_.try_emplace(process, Crash{reason, Clock::now()});
}

bool Engine::Crashed(int process) {
  std::lock_guard lock(mutex_);
  return crashes_.count(process) != 0;
}

void Engine::FailCrashed(Operation& op, Clock::time_point now) {
  std::string names, reason;
  {
    std::lock_guard lock(mutex_);
    for (const RankPlace& rank : op.plan().ranks) {
      auto it = crashes_.find(rank.process);
      // What the process sent before it died may still be enough: a moment for that.
      if (it == crashes_.end() || now - it->second.seen < kCrashGrace) continue;
      names += (names.empty() ? "" : ", ") + rank.name;
      reason = it->second.reason;
    }
  }
  if (names.empty()) return;
  op.Fail(Status::Error(Code::kUnavailable, op.plan().what + ": lost " + names + ": " + reason +
                                                ". Look at that process's log for the first error; the job has to be "
                                                "restarted."));
}

void Engine::WatchPeer(int process, int fd) {
  auto watch = std::make_shared<PeerWatch>(this, process, fd);
  {
    std::lock_guard lock(mutex_);
    goodbyes_.push_back([weak = std::weak_ptr<PeerWatch>(watch)] {
      if (auto live = weak.lock()) live->SayGoodbye();
    });
  }
  poller_->Add(fd, EPOLLIN | EPOLLRDHUP, std::move(watch));
}

void Engine::AddTcp(int process, int channel, int fd, bool sending) {
  // Only this connection ended: others of the same peer may still hold what it sent before.
  auto ended = [this, process](const std::string& why, bool goodbye) {
    if (!goodbye) NoteCrash(process, why + kNoWord);
  };
  auto add = [&](auto make, auto enlist) {
    auto link = make(fd, poller_.get(), links_.slot_bytes(), bell_.get(), ended);
    {
      std::lock_guard lock(mutex_);
      goodbyes_.push_back([link] { SayTcpGoodbye(*link); });
    }
    (links_.*enlist)(process, channel, std::move(link));
  };
  if (sending) {
    add(MakeTcpSendLink, &Links::AddSend);
  } else {
    add(MakeTcpRecvLink, &Links::AddRecv);
  }
}

std::string Engine::AddVerbs(int process, int channel, bool sending, int fd, double timeout_s) {
  auto ended = [this, process](const std::string& why, bool goodbye) {
    if (!goodbye) NoteCrash(process, why);
  };
  VerbsJoin::Joined joined = verbs_.Finish(poller_.get(), process, channel, sending, fd, timeout_s, ended);
  {
    std::lock_guard lock(mutex_);
    goodbyes_.push_back(std::move(joined.say_goodbye));
  }
  if (sending) {
    links_.AddSend(process, channel, std::move(joined.send));
  } else {
    links_.AddRecv(process, channel, std::move(joined.recv));
  }
  return joined.description;
}

}  // namespace jaxring
