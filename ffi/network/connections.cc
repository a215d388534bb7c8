// Adds connections with other processes to the network, and takes note of their ends.
#include <sys/epoll.h>
#include <unistd.h>

#include <stdexcept>

#include "network/network.h"
#include "transport/tcp/tcp.h"

namespace jaxring {
namespace {

// Stands for the control connection where a data connection has its channel.
constexpr int kControl = 0xFFFF;
constexpr size_t kRepeatedFailures = 64;

std::string Sentence(const std::string& why, Ending ending) {
  return ending == Ending::kNoGoodbye ? why + " without a word" : why;
}

}  // namespace

std::unique_ptr<Stream> Network::WithInjectedFaults(std::unique_ptr<Stream> stream, int process, int what) const {
  return WithFaults(std::move(stream), options_.faults,
                    static_cast<uint64_t>(process) << 16 | static_cast<uint64_t>(what));
}

void Network::AddControl(int process, std::unique_ptr<Stream> stream, const std::string& path, bool dialled) {
  if (!path.empty()) stream = paths_.Add(std::move(stream), {path, dialled}, poller_.get());
  const int fd = stream->fd();
  if (options_.faults.data_only == 0) stream = WithInjectedFaults(std::move(stream), process, kControl);
  auto link = std::make_shared<ControlLink>(
      std::move(stream), options_.link_timeout_s, poller_.get(),
      [this, process](const ControlFrame& frame) { OnFrame(process, frame); },
      [this, process](const std::string& why, Ending ending) { ControlEnded(process, why, ending); });
  peers_.Add(process, link, dialled);
  poller_->Add(fd, EPOLLIN | EPOLLRDHUP, link);
  // The peer may be about to begin an operation that failed before the two were connected.
  std::vector<ControlFrame> failures;
  for (const auto& [key, failure] : failures_.Last(kRepeatedFailures)) failures.push_back(FailureFrame(key, failure));
  peers_.SendMissed(process, *link, failures);
}

void Network::ControlEnded(int process, const std::string& why, Ending ending) {
  if (!peers_.HasLeft(process)) RecordCrash(process, Sentence(why, ending), ending);
  // The first report of its end counts: the connection's end may only be a consequence of that.
  const PeerEnd known = peers_.EndOf(process);
  links_.CloseShared(process, known.reason, known.ending);
  doorbell_->NotifyAll();
}

void Network::AddTcp(int process, int channel, std::unique_ptr<Stream> stream, bool sending, const std::string& path) {
  const OnEnd ended = LinkEnded(process, true);
  if (!path.empty()) stream = paths_.Add(std::move(stream), {path, sending}, poller_.get());
  stream = WithInjectedFaults(std::move(stream), process, channel);
  LinkMemory memory = links_.TakePrepared(process, channel, sending);
  auto add = [&](auto link, auto enlist) {
    AddGoodbye([link] { SayTcpGoodbye(*link); });
    (links_.*enlist)(process, channel, std::move(link));
  };
  if (sending) {
    add(MakeTcpSendLink(std::move(stream), poller_.get(), std::move(memory), doorbell_.get(), ended), &Links::AddSend);
  } else {
    add(MakeTcpRecvLink(std::move(stream), poller_.get(), &busy_pollers_, std::move(memory), doorbell_.get(), ended),
        &Links::AddRecv);
  }
}

OnEnd Network::LinkEnded(int process, bool by_socket) {
  // Only this connection ended: other connections of the same peer may still hold messages.
  return [this, process, by_socket, epoch = epoch_.load()](const std::string& why, Ending ending) {
    if (ending == Ending::kGoodbye || epoch != epoch_.load() || peers_.HasLeft(process)) return;
    RecordCrash(process, by_socket ? Sentence(why, ending) : why, ending);
  };
}

void Network::AddGoodbye(const std::function<void()>& say) {
  {
    MutexLock lock(goodbyes_mutex_);
    goodbyes_.push_back(say);
    if (!said_goodbye_) return;
  }
  say();
}

void Network::SayGoodbyes() {
  std::vector<std::function<void()>> goodbyes;
  {
    MutexLock lock(goodbyes_mutex_);
    said_goodbye_ = true;
    goodbyes.swap(goodbyes_);  // a copy would need memory, which this process may have run out of
  }
  for (auto& say : goodbyes) say();
}

std::string Network::Enlist(int process, int channel, bool sending, JoinedLink joined) {
  AddGoodbye(joined.say_goodbye);
  if (sending) {
    links_.AddSend(process, channel, std::move(joined.send));
  } else {
    links_.AddRecv(process, channel, std::move(joined.recv));
  }
  return joined.description;
}

OfferedTransport& Network::transport(const std::string& name) {
  const auto it = offered_.find(name);
  if (it == offered_.end()) throw std::runtime_error("there is no transport " + name + " whose links are offered");
  return *it->second;
}

std::string Network::AddOffered(const std::string& name, int process, int channel, bool sending, int fd,
                                double timeout_s, const std::string& path) {
  OfferedTransport* made = nullptr;
  try {
    made = &transport(name);
  } catch (...) {
    close(fd);
    throw;
  }
  JoinedLink joined = made->Finish(poller_.get(), process, channel, sending, fd, timeout_s, LinkEnded(process, false));
  if (!path.empty() && joined.movable) paths_.Add(joined.movable, {path, sending});
  return Enlist(process, channel, sending, std::move(joined));
}

}  // namespace jaxring
