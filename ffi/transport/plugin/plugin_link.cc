#include "transport/plugin/plugin_link.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>

#include "transport/plugin/plugin_pump.h"

namespace jaxring {
namespace {

using Clock = std::chrono::steady_clock;
// How long the thread polls before it sleeps, and for how long it sleeps at first and at most.
constexpr auto kBusy = std::chrono::microseconds(50);
constexpr auto kFirstSleep = std::chrono::microseconds(20), kLastSleep = std::chrono::microseconds(500);
constexpr auto kJoinPause = std::chrono::milliseconds(1);
constexpr char kDigits[] = "0123456789abcdef";

// Wakes the thread: a lane has published a message or made room.
class WakeNotifier final : public Notifier {
 public:
  explicit WakeNotifier(PluginLinks* links) : links_(links) {}
  void Notify() override { links_->Wake(); }

 private:
  PluginLinks* links_;
};

}  // namespace

PluginLinks::Pending::~Pending() {
  if (listening != nullptr) plugin->CloseListen(listening);
}

PluginLinks::~PluginLinks() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

std::string PluginLinks::LoadVersion(const std::string& name, int only) {
  MutexLock lock(mutex_);
  if (plugin_ == nullptr) plugin_ = NetPlugin::Load(name, only);
  return plugin_->Describe();
}

std::string PluginLinks::Offer(int peer, int channel, bool sending, const Place&) {
  auto pending = std::make_shared<Pending>();
  {
    MutexLock lock(mutex_);
    if (plugin_ == nullptr) throw std::runtime_error("no network plugin is loaded");
    pending->plugin = plugin_;
  }
  pending->device = channel % pending->plugin->devices();
  // The handle in hexadecimal, and the plugin's name, which may hold spaces.
  std::string offer;
  if (!sending) {
    pending->listening = pending->plugin->Listen(pending->device, pending->handle.data());
    for (unsigned char byte : pending->handle) {
      offer += kDigits[byte >> 4];
      offer += kDigits[byte & 15];
    }
  }
  offer += " " + pending->plugin->name();
  MutexLock lock(mutex_);
  pending_[{peer, channel, sending}] = std::move(pending);
  return offer;
}

std::shared_ptr<PluginLinks::Pending> PluginLinks::Take(const Key& key, bool keep) {
  MutexLock lock(mutex_);
  auto it = pending_.find(key);
  if (it == pending_.end()) throw std::runtime_error("no link by a network plugin to that process is being set up");
  auto found = it->second;
  if (!keep) pending_.erase(it);
  return found;
}

void PluginLinks::Prepare(int peer, int channel, bool sending, const std::string& peer_offer) {
  auto pending = Take({peer, channel, sending}, true);
  const size_t space = peer_offer.find(' ');
  const std::string name = space == std::string::npos ? "" : peer_offer.substr(space + 1);
  if (name != pending->plugin->name()) {
    throw std::runtime_error("the network plugins differ: " + pending->plugin->name() + " here, " + name + " there");
  }
  if (!sending) return;
  const std::string handle = peer_offer.substr(0, space);
  bool good = handle.size() == 2 * pending->handle.size();
  for (size_t i = 0; good && i < handle.size(); ++i) {
    const char c = handle[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    good = digit >= 0;
    pending->handle[i / 2] = static_cast<char>((pending->handle[i / 2] << 4) | (digit & 15));
  }
  if (!good) throw std::runtime_error("the peer's address cannot be read");
}

void* PluginLinks::Join(Pending& pending, bool sending, double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  while (true) {
    void* comm = sending ? pending.plugin->Connect(pending.device, pending.handle.data())
                         : pending.plugin->Accept(pending.listening);
    if (comm != nullptr) return comm;
    if (Clock::now() > deadline) throw std::runtime_error("the peer did not connect in time");
    std::this_thread::sleep_for(kJoinPause);
  }
}

JoinedLink PluginLinks::Finish(Poller* poller, int peer, int channel, bool sending, int fd, double timeout_s,
                               OnEnd on_end) {
  JoinedLink joined;
  std::shared_ptr<PluginPump> pump;
  auto notifier = std::make_unique<WakeNotifier>(this);
  try {
    auto pending = Take({peer, channel, sending}, false);
    void* comm = Join(*pending, sending, timeout_s);
    joined.description = pending->plugin->Describe() + ", device " + std::to_string(pending->device);
    if (sending) {
      joined.send = std::make_shared<SendLink>("plugin", LinkMemory::Anonymous(slot_bytes_), notifier.get());
      pump = std::make_shared<PluginSendPump>(pending->plugin, comm, fd, poller, joined.send, own_doorbell_,
                                              std::move(on_end));
      joined.send->notifier = std::move(notifier);
    } else {
      joined.recv = std::make_shared<RecvLink>("plugin", LinkMemory::Anonymous(slot_bytes_), notifier.get());
      pump = std::make_shared<PluginRecvPump>(pending->plugin, comm, fd, poller, joined.recv, own_doorbell_,
                                              std::move(on_end));
      joined.recv->notifier = std::move(notifier);
    }
  } catch (...) {
    // If the pump was made, it closes `fd`.
    if (pump == nullptr) close(fd);
    throw;
  }
  poller->Add(fd, EPOLLIN | EPOLLRDHUP | EPOLLET, pump);
  joined.say_goodbye = [weak = std::weak_ptr<PluginPump>(pump)] {
    if (auto live = weak.lock()) live->SayGoodbye();
  };
  MutexLock lock(mutex_);
  pumps_.push_back(std::move(pump));
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  return joined;
}

void PluginLinks::Wake() {
  if (woken_.exchange(true)) return;
  // Taking the lock keeps this out of the time between the thread's check of `woken_` and its sleep.
  {
    MutexLock lock(mutex_);
  }
  wake_.NotifyOne();
}

void PluginLinks::Run() {
  std::vector<std::shared_ptr<PluginPump>> pumps;
  auto last = Clock::now();
  auto sleep = kFirstSleep;
  while (!stop_) {
    {
      MutexLock lock(mutex_);
      std::erase_if(pumps_, [](const auto& pump) { return pump->ended(); });
      pumps = pumps_;
    }
    bool moved = woken_.exchange(false);
    for (auto& pump : pumps) moved |= pump->Turn();
    if (moved) {
      last = Clock::now();
      sleep = kFirstSleep;
    } else if (Clock::now() - last < kBusy) {
      std::this_thread::yield();
    } else {
      MutexLock lock(mutex_);
      const auto until = Clock::now() + sleep;
      while (!stop_ && !woken_ && wake_.WaitUntil(mutex_, until)) {
      }
      sleep = std::min(2 * sleep, kLastSleep);
    }
  }
}

}  // namespace jaxring
