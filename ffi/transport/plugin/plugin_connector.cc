#include "transport/plugin/plugin_connector.h"

#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <memory>
#include <stdexcept>

#include "base/clock.h"
#include "base/hex.h"
#include "base/thread_name.h"
#include "transport/plugin/plugin_pump.h"

namespace jaxring {
namespace {

// How long the thread polls before it sleeps, and for how long it sleeps at first and at most.
constexpr auto kBusy = std::chrono::microseconds(50);
constexpr auto kFirstSleep = std::chrono::microseconds(20), kLastSleep = std::chrono::microseconds(500);
constexpr auto kJoinPause = std::chrono::milliseconds(1);

// Wakes the thread: a lane has published a message or made room.
class WakeNotifier final : public Notifier {
 public:
  explicit WakeNotifier(PluginConnector* connector) : connector_(connector) {}
  void Notify() override { connector_->Wake(); }

 private:
  PluginConnector* connector_;
};

}  // namespace

PluginConnector::~PluginConnector() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

std::string PluginConnector::LoadVersion(const std::string& name, int only) {
  MutexLock lock(mutex_);
  if (plugin_ == nullptr) plugin_ = NetPlugin::Load(name, only);
  return plugin_->Describe();
}

class PluginConnector::Offered final : public OfferedLink {
 public:
  Offered(PluginConnector* connector, std::shared_ptr<NetPlugin> plugin, const LinkName& link)
      : connector_(connector), plugin_(std::move(plugin)), sending_(link.sending) {
    device_ = link.channel % plugin_->devices();
    // The handle in hexadecimal, and the plugin's name, which may hold spaces.
    if (!sending_) {
      listening_ = plugin_->Listen(device_, handle_.data());
      offer_ = ToHex({handle_.data(), handle_.size()});
    }
    offer_ += " " + plugin_->name();
  }
  ~Offered() override {
    if (listening_ != nullptr) plugin_->CloseListen(listening_);
  }

  void Prepare(const std::string& peer_offer) override {
    const size_t space = peer_offer.find(' ');
    const std::string name = space == std::string::npos ? "" : peer_offer.substr(space + 1);
    if (name != plugin_->name()) {
      throw std::runtime_error("the network plugins differ: " + plugin_->name() + " here, " + name + " there");
    }
    if (sending_ && !FromHex(peer_offer.substr(0, space), handle_)) {
      throw std::runtime_error("the peer's address cannot be read");
    }
  }

  JoinedLink Finish(Agreed agreed) override {
    JoinedLink joined;
    std::shared_ptr<PluginPump> pump;
    auto notifier = std::make_unique<WakeNotifier>(connector_);
    const auto close = [this](void* comm) { sending_ ? plugin_->CloseSend(comm) : plugin_->CloseReceive(comm); };
    std::unique_ptr<void, decltype(close)> comm(Join(agreed.timeout_s), close);
    joined.description = plugin_->Describe() + ", device " + std::to_string(device_);
    LinkMemory memory = LinkMemory::Anonymous(connector_->slot_bytes_);
    const int fd = agreed.socket.get();
    if (sending_) {
      joined.send = std::make_shared<SendLink>(kPlugin, std::move(memory), notifier.get());
      pump = std::make_shared<PluginSendPump>(plugin_, comm.get(), std::move(agreed.socket), agreed.poller, joined.send,
                                              connector_->own_doorbell_, std::move(agreed.on_end));
      joined.send->notifier = std::move(notifier);
    } else {
      joined.recv = std::make_shared<RecvLink>(kPlugin, std::move(memory), notifier.get());
      pump = std::make_shared<PluginRecvPump>(plugin_, comm.get(), std::move(agreed.socket), agreed.poller, joined.recv,
                                              connector_->own_doorbell_, std::move(agreed.on_end));
      joined.recv->notifier = std::move(notifier);
    }
    [[maybe_unused]] void* const owned_by_pump = comm.release();  // which closes it
    connector_->Serve(pump);
    agreed.poller->Add(fd, EPOLLIN | EPOLLRDHUP | EPOLLET, pump);
    joined.say_goodbye = [weak = std::weak_ptr<PluginPump>(pump)] {
      if (auto live = weak.lock()) live->SayGoodbye();
    };
    return joined;
  }

 private:
  void* Join(double timeout_s) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
    while (true) {
      void* comm = sending_ ? plugin_->Connect(device_, handle_.data()) : plugin_->Accept(listening_);
      if (comm != nullptr) return comm;
      if (Clock::now() > deadline) throw std::runtime_error("the peer did not connect in time");
      std::this_thread::sleep_for(kJoinPause);
    }
  }

  PluginConnector* const connector_;
  const std::shared_ptr<NetPlugin> plugin_;
  const bool sending_;
  void* listening_ = nullptr;
  std::array<char, NetPlugin::kHandleBytes> handle_{};
  int device_ = 0;
};

std::unique_ptr<OfferedLink> PluginConnector::Offer(const LinkName& link, const Place&) {
  std::shared_ptr<NetPlugin> plugin;
  {
    MutexLock lock(mutex_);
    plugin = plugin_;
  }
  if (plugin == nullptr) throw std::runtime_error("no network plugin is loaded");
  return std::make_unique<Offered>(this, std::move(plugin), link);
}

void PluginConnector::Serve(std::shared_ptr<PluginPump> pump) {
  MutexLock lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  pumps_.push_back(std::move(pump));
}

void PluginConnector::Wake() {
  if (woken_.exchange(true)) return;
  // Taking the lock keeps this out of the time between the thread's check of `woken_` and its sleep.
  {
    MutexLock lock(mutex_);
  }
  wake_.NotifyOne();
}

void PluginConnector::Run() {
  NameThread("jaxring-plugin");
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

std::unique_ptr<Connector> MakePluginConnector(const ConnectorOptions& options) {
  return std::make_unique<PluginConnector>(options);
}

}  // namespace jaxring
