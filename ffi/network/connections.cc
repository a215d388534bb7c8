// Adds connections with other processes to the network, and takes note of their ends.
#include <sys/epoll.h>

#include "network/network.h"

namespace jaxring {
namespace {

// Stands for the control connection where a data connection has its channel.
constexpr int kControl = 0xFFFF;
constexpr size_t kRepeatedFailures = 64;

}  // namespace

void Network::AddControl(int process, std::unique_ptr<Stream> stream, const std::string& path, bool dialled) {
  if (!path.empty()) stream = paths_.Add(std::move(stream), {path, dialled}, poller_.get());
  const int fd = stream->fd();
  if (options_.faults.data_only == 0) {
    stream = WithFaults(std::move(stream), options_.faults, FaultsOf(process, kControl));
  }
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
  if (!peers_.HasLeft(process)) RecordCrash(process, EndOfSocket(why, ending), ending);
  // The first report of its end counts: the connection's end may only be a consequence of that.
  const PeerEnd known = peers_.EndOf(process);
  links_.CloseShared(process, known.reason, known.ending);
  doorbell_->NotifyAll();
}

OnEnd Network::LinkEnded(int process) {
  // Only this connection ended: other connections of the same peer may still hold messages.
  return [this, process, epoch = epoch_.load()](const std::string& why, Ending ending) {
    if (ending == Ending::kGoodbye || epoch != epoch_.load() || peers_.HasLeft(process)) return;
    RecordCrash(process, why, ending);
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

std::string Network::AddLink(const LinkName& link, Descriptor socket, double timeout_s, const std::string& key,
                             const std::string& path) {
  Agreed agreed{poller_.get(), std::move(socket), timeout_s, key, LinkEnded(link.peer), nullptr};
  const Paths::End end{path, link.sending};
  if (!path.empty()) {
    agreed.go_on = [&](std::unique_ptr<Stream> stream) { return paths_.Add(std::move(stream), end, poller_.get()); };
  }
  JoinedLink joined = connectors_.Finish(link, std::move(agreed));
  if (!path.empty() && joined.movable) paths_.Add(joined.movable, end);
  if (joined.say_goodbye) AddGoodbye(joined.say_goodbye);
  if (link.sending) {
    links_.AddSend(link.peer, link.channel, std::move(joined.send));
  } else {
    links_.AddRecv(link.peer, link.channel, std::move(joined.recv));
  }
  return joined.description;
}

}  // namespace jaxring
