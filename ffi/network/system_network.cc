#include "network/system_network.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "network/peers/control.h"

namespace jaxring {
namespace {

// Stands for the control connection where a data connection has its channel.
constexpr int kControl = 0xFFFF;

}  // namespace

SystemNetwork::SystemNetwork(const NetworkOptions& options, NetworkClient* client)
    : Network(Doorbell::Create(), options.slot_bytes, options.faults, client),
      options_(options),
      client_(client),
      paths_(options.link_timeout_s),
      connectors_({options.slot_bytes, &doorbell(), &busy_pollers(), options.faults}) {}

SystemNetwork::~SystemNetwork() {
  Stop();
  peers().Clear();  // their connections are in `paths_`
}

void SystemNetwork::Start() {
  poller_ = std::make_unique<Poller>([this] { client_->OnTick(); });
}

void SystemNetwork::Stop() {
  if (poller_) poller_->Stop();
}

void SystemNetwork::CheckConnections(Time now) {
  paths_.Check(now);
  connectors_.CheckPorts();
}

void SystemNetwork::EndConnections() {
  poller_->Clear();
  connectors_.Clear();
  MutexLock lock(goodbyes_mutex_);
  goodbyes_.clear();
}

void SystemNetwork::AddControl(int process, std::unique_ptr<Stream> stream, const std::string& path, bool dialled) {
  if (!path.empty()) stream = paths_.Add(std::move(stream), {path, dialled}, poller_.get());
  const int fd = stream->fd();
  if (options_.faults.data_only == 0) {
    stream = WithFaults(std::move(stream), options_.faults, FaultsOf(process, kControl));
  }
  auto link = std::make_shared<ControlLink>(
      std::move(stream), options_.link_timeout_s, poller_.get(),
      [this, process](const ControlFrame& frame) { OnFrame(process, frame); },
      [this, process](const std::string& why, Ending ending) { ControlEnded(process, why, ending); });
  peers().Add(process, link, dialled);
  poller_->Add(fd, EPOLLIN | EPOLLRDHUP, link);
  SendMissed(process, *link);
}

void SystemNetwork::AddGoodbye(const std::function<void()>& say) {
  {
    MutexLock lock(goodbyes_mutex_);
    goodbyes_.push_back(say);
    if (!said_goodbye_) return;
  }
  say();
}

void SystemNetwork::SayGoodbyes() {
  std::vector<std::function<void()>> goodbyes;
  {
    MutexLock lock(goodbyes_mutex_);
    said_goodbye_ = true;
    goodbyes.swap(goodbyes_);  // a copy would need memory, which this process may have run out of
  }
  for (auto& say : goodbyes) say();
}

std::string SystemNetwork::AddLink(const LinkName& link, Descriptor socket, double timeout_s, const std::string& key,
                                   const std::string& path) {
  // Once the link is finished its pump has the socket.
  const Descriptor same(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  Agreed agreed{poller_.get(), std::move(socket), timeout_s, key, LinkEnded(link.peer), nullptr};
  const Paths::End end{path, link.sending};
  bool named = false;  // that connection of `paths_` is this one
  if (!path.empty()) {
    agreed.go_on = [&](std::unique_ptr<Stream> stream) {
      auto resumable = paths_.Add(std::move(stream), end, poller_.get());
      named = true;
      return resumable;
    };
  }
  JoinedLink joined = connectors_.Finish(link, std::move(agreed));
  try {
    if (!path.empty() && joined.movable) {
      paths_.Add(joined.movable, end);
      named = true;
    }
    if (joined.say_goodbye) AddGoodbye(joined.say_goodbye);
    if (link.sending) {
      links().AddSend(link.peer, link.channel, std::move(joined.send));
    } else {
      links().AddRecv(link.peer, link.channel, std::move(joined.recv));
    }
  } catch (const std::exception& error) {
    // The peer may have its end in service already, and nobody would read what it sends. Both ends see this.
    if (named) paths_.Fail(end, error.what(), Ending::kNoGoodbye);
    shutdown(same.get(), SHUT_RDWR);
    throw;
  }
  return joined.description;
}

}  // namespace jaxring
