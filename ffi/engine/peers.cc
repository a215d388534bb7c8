// Connections with the other processes of a job, and how operations fail when one of these processes is gone.
#include <sys/epoll.h>

#include <algorithm>

#include "engine/engine.h"

namespace jaxring {
namespace {

// What a process sent before it died may suffice: operations get this time to receive it.
constexpr auto kCrashGrace = std::chrono::milliseconds(100);
// Links say when they have brought everything of a process that reported an error between operations, unless it dies
// before it has told them to.
constexpr auto kIdleGrace = std::chrono::seconds(2);

// Stands for the control connection where a data connection has its channel.
constexpr int kControl = 0xFFFF;

std::string Sentence(const std::string& why, Ending ending) {
  return ending == Ending::kNoGoodbye ? why + " without a word" : why;
}

std::string NameOf(const Plan& plan, int process) {
  auto rank =
      std::find_if(plan.ranks.begin(), plan.ranks.end(), [&](const RankPlace& r) { return r.process == process; });
  return rank == plan.ranks.end() ? "process " + std::to_string(process) : rank->name;
}

}  // namespace

std::unique_ptr<Stream> Engine::WithInjectedFaults(std::unique_ptr<Stream> stream, int process, int what) const {
  return WithFaults(std::move(stream), options_.faults,
                    static_cast<uint64_t>(process) << 16 | static_cast<uint64_t>(what));
}

void Engine::AddControl(int process, std::unique_ptr<Stream> stream, const std::string& path, bool dialled) {
  if (!path.empty()) stream = paths_.Add(std::move(stream), {path, dialled}, poller_.get());
  const int fd = stream->fd();
  if (options_.faults.data_only == 0) stream = WithInjectedFaults(std::move(stream), process, kControl);
  auto link = std::make_shared<ControlLink>(
      std::move(stream), options_.link_timeout_s, poller_.get(),
      [this, process](const ControlFrame& frame) { OnFrame(process, frame); },
      [this, process](const std::string& why, Ending ending) { ControlEnded(process, why, ending); });
  {
    std::lock_guard lock(peers_mutex_);
    Peer& peer = peers_[process];
    peer.heard_at = Clock::now();
    peer.controls.push_back(link);
    if (dialled) peer.dialled = link;
  }
  poller_->Add(fd, EPOLLIN | EPOLLRDHUP, link);
  {
    std::lock_guard lock(peers_mutex_);
    if (!farewell_.empty()) link->Send(farewell_);
  }
  // The peer may be about to begin an operation that failed before the two were connected.
  for (const ControlFrame& failed : LastFailures()) link->Send(EncodeFrame(failed));
  std::vector<std::string> unsent;
  std::lock_guard lock(peers_mutex_);
  unsent.swap(peers_[process].unsent);
  for (const std::string& message : unsent) link->Send(message);
}

void Engine::ControlEnded(int process, const std::string& why, Ending ending) {
  if (!HasLeft(process)) RecordCrash(process, Sentence(why, ending), ending);
  // The first report of its end counts: the connection's end may only be a consequence of that.
  const PeerEnd known = EndOf(process);
  links_.CloseShared(process, known.reason, known.ending);
  doorbell_->NotifyAll();
}

Crash Engine::RecordCrash(int process, const std::string& reason, Ending ending, int witness) {
  RecordTrouble();
  Crash crash{reason, ending, Clock::now(), witness};
  {
    std::lock_guard lock(mutex_);
    const auto [it, news] = crashes_.try_emplace(process, crash);
    if (!news) {
      if (witness < 0) it->second.witness = -1;
      return it->second;
    }
  }
  // Forwarded, since not every process is connected with the one that crashed.
  ControlFrame gone;
  gone.kind = ControlFrame::Kind::kGone;
  gone.process = process;
  gone.witness = witness;
  gone.ending = ending;
  gone.text = reason;
  TellAll(gone, process);
  return crash;
}

void Engine::SendControlMessage(int process, const std::string& text) {
  ControlFrame message;
  message.kind = ControlFrame::Kind::kMessage;
  message.text = text;
  std::lock_guard lock(peers_mutex_);
  Peer& peer = peers_[process];
  if (peer.controls.empty()) {
    peer.unsent.push_back(EncodeFrame(message));
  } else {
    peer.controls.front()->Send(EncodeFrame(message));
  }
}

void Engine::Confirm(ProgramLatch& latch, int process) {
  if (latch.Confirm(process)) doorbell_->NotifyAll();
}

void Engine::OpenLatchIfPeersLeft(ProgramLatch& latch, const std::set<int>& left) {
  for (int process : latch.Missing()) {
    if (left.count(process) != 0) Confirm(latch, process);
  }
}

bool Engine::InFlight(uint64_t plan_key) {
  uint64_t version;
  const std::vector<std::shared_ptr<Operation>> active = Active(&version);
  return std::any_of(active.begin(), active.end(), [&](const auto& op) { return op->plan().key == plan_key; });
}

void Engine::FailPlan(uint64_t plan_key, const Status& status) {
  uint64_t version;
  bool found = false;
  for (auto& op : Active(&version)) {
    if (op->plan().key != plan_key) continue;
    op->Fail(status);
    found = true;
  }
  if (found) doorbell_->NotifyAll();
}

bool Engine::Crashed(int process) {
  std::lock_guard lock(mutex_);
  return crashes_.count(process) != 0;
}

void Engine::FailCrashed(Operation& op, Clock::time_point now) {
  struct Lost {
    int process;
    std::string names;
    Crash crash;
  };
  std::vector<Lost> lost;
  {
    std::lock_guard lock(mutex_);
    if (crashes_.empty()) return;
    for (const RankPlace& rank : op.plan().ranks) {
      auto it = crashes_.find(rank.process);
      if (it == crashes_.end() || now - it->second.seen < kCrashGrace) continue;
      if (it->second.ending == Ending::kReportedErrorIdle && now - it->second.seen < kIdleGrace &&
          MayDoWithout(op, rank.process)) {
        continue;
      }
      auto known = std::find_if(lost.begin(), lost.end(), [&](const Lost& l) { return l.process == rank.process; });
      if (known == lost.end()) {
        lost.push_back({rank.process, rank.name, it->second});
      } else {
        known->names += ", " + rank.name;
      }
    }
  }
  if (lost.empty()) return;
  // What this process observed itself comes first: a process that is cut off reports all others as gone.
  std::stable_partition(lost.begin(), lost.end(), [](const Lost& l) { return l.crash.witness < 0; });
  std::string text = op.What() + ": lost ";
  constexpr size_t kDescribed = 4;
  for (size_t i = 0; i < std::min(lost.size(), kDescribed); ++i) {
    text.append(i == 0 ? "" : "; ").append(lost[i].names).append(": ").append(lost[i].crash.reason);
    if (lost[i].crash.witness >= 0)
      text.append(", as ").append(NameOf(op.plan(), lost[i].crash.witness)).append(" says");
  }
  if (lost.size() > kDescribed) text += "; and " + std::to_string(lost.size() - kDescribed) + " more processes";
  const Ending ending = lost.front().crash.ending;
  op.Fail(Status::Error(LostCode(ending), text + ". " + LastSeen(lost.front().process) + LostHint(ending)));
}

bool Engine::HasPeers() {
  std::lock_guard lock(peers_mutex_);
  return !peers_.empty();
}

void Engine::AddTcp(int process, int channel, std::unique_ptr<Stream> stream, bool sending, const std::string& path) {
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

OnEnd Engine::LinkEnded(int process, bool by_socket) {
  // Only this connection ended: other connections of the same peer may still hold messages.
  return [this, process, by_socket, epoch = epoch_.load()](const std::string& why, Ending ending) {
    if (ending == Ending::kGoodbye || epoch != epoch_.load() || HasLeft(process)) return;
    RecordCrash(process, by_socket ? Sentence(why, ending) : why, ending);
  };
}

void Engine::AddGoodbye(const std::function<void()>& say) {
  {
    std::lock_guard lock(mutex_);
    goodbyes_.push_back(say);
    if (!said_goodbye_) return;
  }
  say();
}

std::string Engine::Enlist(int process, int channel, bool sending, JoinedLink joined) {
  AddGoodbye(joined.say_goodbye);
  if (sending) {
    links_.AddSend(process, channel, std::move(joined.send));
  } else {
    links_.AddRecv(process, channel, std::move(joined.recv));
  }
  return joined.description;
}

OfferedTransport& Engine::transport(const std::string& name) {
  const auto it = offered_.find(name);
  if (it == offered_.end()) throw std::runtime_error("there is no transport " + name + " whose links are offered");
  return *it->second;
}

std::string Engine::AddOffered(const std::string& name, int process, int channel, bool sending, int fd,
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
