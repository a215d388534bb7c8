// Connections with the processes that an engine works with, and what becomes of operations when one of these is gone.
#include <sys/epoll.h>

#include "engine/engine.h"

namespace jaxring {
namespace {

constexpr auto kCrashGrace = std::chrono::milliseconds(100);
constexpr const char* kNoWord = " without a word";

}  // namespace

void Engine::AddControl(int process, int fd) {
  auto link = std::make_shared<ControlLink>(
      fd, poller_.get(), [this, process](const ControlFrame& frame) { OnFrame(process, frame); },
      [this, process](const std::string& why) { ControlEnded(process, why); });
  {
    std::lock_guard lock(peers_mutex_);
    Peer& peer = peers_[process];
    peer.heard = Clock::now();
    peer.controls.push_back(link);
  }
  poller_->Add(fd, EPOLLIN | EPOLLRDHUP, std::move(link));
}

void Engine::ControlEnded(int process, const std::string& why) {
  bool left;
  {
    std::lock_guard lock(peers_mutex_);
    left = peers_[process].left;
  }
  if (!left) NoteCrash(process, why + kNoWord);
  links_.CloseShared(process, why);
  bell_->NotifyAll();
}

void Engine::NoteCrash(int process, const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (!crashes_.try_emplace(process, Crash{reason, Clock::now()}).second) return;
  }
  // Not every process is linked with every other.
  ControlFrame gone;
  gone.kind = ControlFrame::Kind::kGone;
  gone.process = process;
  gone.text = reason;
  TellAll(gone, process);
}

bool Engine::Crashed(int process) {
  std::lock_guard lock(mutex_);
  return crashes_.count(process) != 0;
}

void Engine::FailCrashed(Operation& op, Clock::time_point now) {
  std::string names, reason;
  int process = -1;
  {
    std::lock_guard lock(mutex_);
    if (crashes_.empty()) return;
    for (const RankPlace& rank : op.plan().ranks) {
      auto it = crashes_.find(rank.process);
      // What the process sent before it died may still be enough: a moment for that.
      if (it == crashes_.end() || now - it->second.seen < kCrashGrace) continue;
      names += (names.empty() ? "" : ", ") + rank.name;
      reason = it->second.reason;
      process = it->first;
    }
  }
  if (names.empty()) return;
  op.Fail(Status::Error(Code::kUnavailable,
                        op.What() + ": lost " + names + ": " + reason + ". " + LastSeen(process) + kLostHint));
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

std::string Engine::Enlist(int process, int channel, bool sending, JoinedLink joined) {
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

std::string Engine::AddVerbs(int process, int channel, bool sending, int fd, double timeout_s) {
  auto ended = [this, process](const std::string& why, bool goodbye) {
    if (!goodbye) NoteCrash(process, why);
  };
  return Enlist(process, channel, sending,
                verbs_.Finish(poller_.get(), process, channel, sending, fd, timeout_s, ended));
}

std::string Engine::AddPlugin(int process, int channel, bool sending, int fd, double timeout_s) {
  auto ended = [this, process](const std::string& why, bool goodbye) {
    if (!goodbye) NoteCrash(process, why);
  };
  return Enlist(process, channel, sending,
                plugins_.Finish(poller_.get(), process, channel, sending, fd, timeout_s, ended));
}

}  // namespace jaxring
