// The parts that both ends of an RDMA link share: completions, the control connection, and the end of the link.
#include "transport/verbs/verbs.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace jaxring {
namespace {

// What the two ends say on the control connection: that everything arrived which a goodbye told of; a goodbye, with
// words up to the line's end; that the sending end has taken over a new control connection; an error, with its text up
// to the connection's end; that the receiving end has lost its queue pairs.
constexpr char kAllHere = 'a', kFarewell = 'b', kTakenOver = 'c', kGaveUp = 'e', kLost = 'l';
constexpr size_t kMaxHeard = 4096;
constexpr int kLastWordMs = 500;
constexpr auto kCheckPort = std::chrono::milliseconds(250);
// How long messages that a goodbye has overtaken are waited for.
constexpr auto kOvertaken = std::chrono::seconds(5);

class PeerEar final : public Poller::Handler {
 public:
  explicit PeerEar(std::shared_ptr<VerbsPump> pump) : pump_(std::move(pump)) {}
  void OnEvents(uint32_t) override { pump_->Hear(); }

 private:
  std::shared_ptr<VerbsPump> pump_;
};

}  // namespace

VerbsPump::VerbsPump(std::shared_ptr<void> link, std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller,
                     LinkEnd* end, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end)
    : link_(std::move(link)),
      endpoint_(std::move(endpoint)),
      device_(endpoint_->device()),
      own_doorbell_(own_doorbell),
      fd_(fd),
      poller_(poller),
      end_(end),
      on_end_(std::move(on_end)),
      busy_pollers_(busy_pollers) {}

VerbsPump::~VerbsPump() { close(fd_); }

void VerbsPump::Start() {
  {
    MutexLock lock(mutex_);
    poller_->Add(endpoint_->fd(), EPOLLIN, shared_from_this());
    poller_->Add(fd_, EPOLLIN | EPOLLRDHUP, std::make_shared<PeerEar>(shared_from_this()));
  }
  OnEvents(0);
}

void VerbsPump::OnEvents(uint32_t) {
  MutexLock lock(mutex_);
  if (closed()) return;
  armed_ = false;
  endpoint_->TakeEvents();
  if (!busy_pollers_->MayDisableEvents()) return EnableEventsLocked();
  PumpLocked();
}

void VerbsPump::EnableEvents() {
  MutexLock lock(mutex_);
  if (!armed_ && !closed()) EnableEventsLocked();
}

void VerbsPump::EnableEventsLocked() {
  if (lost()) return;
  armed_ = true;
  // Events are enabled before the completion queue is polled, so that no completion is missed in between.
  if (!endpoint_->Arm()) return End(endpoint_->error(), true);
  PumpLocked();
}

bool VerbsPump::Poll() {
  if (!mutex_.TryLock()) return false;
  MutexLock lock(mutex_, std::adopt_lock);
  return !closed() && PumpLocked();
}

void VerbsPump::Pump() {
  MutexLock lock(mutex_);
  PumpLocked();
}

bool VerbsPump::PumpLocked() {
  bool good = !closed() && !lost(), any = false;
  while (good) {
    events_.clear();
    good = endpoint_->Poll(&events_);
    completions_ += events_.size();
    // Events before a failure are complete.
    for (const Event& event : events_) good = Handle(event) && good;
    good = good && Advance();
    if (events_.empty()) break;
    any = true;
  }
  if (good) CompleteLocked();
  if (good && !armed_ && MustHear()) EnableEventsLocked();
  if (good || closed() || lost()) return any;
  // When a peer ends, its queue pairs end, too, and an iWARP device reports this at once. The peer's last message on
  // the control connection, or the end of it, may still be on its way.
  pollfd word{fd_, POLLIN, 0};
  const bool leaving = endpoint_->closed_by_peer();
  if (leaving && !HasSpoken()) poll(&word, 1, kLastWordMs);
  if (Listen() || (leaving && HasSpoken())) {
    End(LastWord(), false);
  } else if (movable_ && endpoint_->unreachable()) {
    Lose();
  } else {
    End(endpoint_->error(), true);
  }
  return any;
}

bool VerbsPump::Misbehaved() {
  endpoint_->Fail("the peer sent a notice that no jaxring process of this version sends");
  return false;
}

void VerbsPump::End(const std::string& why, bool tell, Ending ending) {
  if (closed()) return;
  if (goodbye_) ending = Ending::kGoodbye;
  end_->Close(why, ending);
  if (tell) {
    Say(kGaveUp + why);
    shutdown(fd_, SHUT_WR);
  }
  own_doorbell_->Notify();
  if (on_end_) on_end_(why, ending);
  poller_->Remove(endpoint_->fd());
  poller_->Remove(fd_);
}

void VerbsPump::Hear() {
  MutexLock lock(mutex_);
  if (closed() || !Listen()) return;
  // Messages that the peer wrote before it closed the link are still valid.
  PumpLocked();
  if (closed()) return;
  if (!goodbye_ || AllHere()) return End(LastWord(), false);
  // The goodbye has overtaken messages: soft-iWARP completes a write when TCP has its bytes. CheckPort ends the wait.
  closed_by_peer_ = true;
  closed_since_ = std::chrono::steady_clock::now();
  poller_->Remove(fd_);
}

void VerbsPump::CompleteLocked() {
  if (!goodbye_ || closed() || !AllHere()) return;
  if (!end_->complete.exchange(true, std::memory_order_acq_rel)) {
    Say(std::string(1, kAllHere));
  }
  if (closed_by_peer_) End(LastWord(), false);
}

bool VerbsPump::Listen() {
  std::array<char, 512> buffer;
  while (!control_failed_) {
    const ssize_t n = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) {
      heard_.append(buffer.data(), std::min(static_cast<size_t>(n), kMaxHeard - heard_.size()));
      TakeWords();
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (HasGivenUp()) return true;
    const bool ended = n == 0 || EndingOf(errno) != Ending::kUnreachable;
    if (!movable_ || (ended && confirmed_ && handover_ == Handover::kNone)) return true;
    // Its path has failed, or the peer may go on with another one.
    control_failed_ = true;
    poller_->Remove(fd_);
    if (handover_ != Handover::kSwitched) Lose();
  }
  return false;
}

void VerbsPump::TakeWords() {
  while (!heard_.empty()) {
    const size_t end = heard_.find('\n');
    if (heard_[0] == kAllHere) {
      acknowledged_ = true;
      heard_.erase(0, 1);
    } else if (heard_[0] == kTakenOver) {
      confirmed_ = true;
      heard_.erase(0, 1);
    } else if (heard_[0] == kLost) {
      if (movable_ && handover_ != Handover::kSwitched) Lose();
      heard_.erase(0, 1);
    } else if (heard_[0] == kFarewell && end != std::string::npos) {
      goodbye_ = true;
      Farewell(heard_.substr(1, end - 1));
      heard_.erase(0, end + 1);
      CompleteLocked();
    } else {
      return;
    }
  }
}

std::string VerbsPump::LastWord() const {
  return heard_.size() > 1 && HasGivenUp() ? "it gave up: " + heard_.substr(1) : "its process ended";
}

bool VerbsPump::HasGivenUp() const { return !heard_.empty() && heard_[0] == kGaveUp; }

void VerbsPump::CheckPort() {
  if (!mutex_.TryLock()) return;
  MutexLock lock(mutex_, std::adopt_lock);
  if (closed()) return;
  const auto now = std::chrono::steady_clock::now();
  if (closed_by_peer_ && now - closed_since_ > kOvertaken) return End(LastWord(), false);
  // A link that can go on over other ports is watched by Observe.
  if (movable_ || !Waiting() || now - checked_ < kCheckPort) return;
  const bool seen = checked_ != decltype(checked_){} && now - checked_ < 3 * kCheckPort;
  checked_ = now;
  if (endpoint_->PortActive() || !seen) {
    down_since_ = now;
    return;
  }
  if (now - down_since_ < endpoint_->Patience()) return;
  endpoint_->FailForPort();
  End(endpoint_->error(), true);
}

void VerbsPump::SayGoodbye() {
  MutexLock lock(mutex_);  // TakeOver may close the present control connection meanwhile
  SendGoodbye("");
}

void VerbsPump::SendGoodbye(const std::string& words) {
  farewell_ = kFarewell + words + "\n";
  Say(farewell_);
}

void VerbsPump::Say(const std::string& words) { SayOn(fd_, words); }

void VerbsPump::SayOn(int fd, const std::string& words) {
  [[maybe_unused]] ssize_t n = send(fd, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void VerbsPump::Lose() {
  if (closed() || lost()) return;
  suspended_at_ = std::chrono::steady_clock::now();
  if (!sends()) Say(std::string(1, kLost));
}

void VerbsPump::TakeOver(uint64_t attempt, int fd) {
  MutexLock renewing(renewal_mutex_);
  MutexLock lock(mutex_);
  const bool switched = attempt == attempt_ && handover_ == Handover::kSwitched;
  if (switched && !closed()) {
    Listen();  // the old one's last words
    if (HasGivenUp()) End(LastWord(), false);
  }
  if (!switched || closed()) {
    // The peer may listen to this connection alone.
    if (closed()) SayOn(fd, kGaveUp + end_->reason);
    close(fd);
    throw std::invalid_argument("this attempt to go on over other ports is not the latest one, or the link has ended");
  }
  poller_->Remove(fd_);
  close(std::exchange(fd_, fd));
  heard_.clear();
  control_failed_ = false;
  handover_ = Handover::kNone;
  confirmed_ = sends();
  // What the old one may not have brought.
  if (sends()) Say(std::string(1, kTakenOver));
  if (!sends() && lost()) Say(std::string(1, kLost));
  if (!farewell_.empty()) Say(farewell_);
  if (end_->complete.load(std::memory_order_acquire)) Say(std::string(1, kAllHere));
  poller_->Add(fd_, EPOLLIN | EPOLLRDHUP, std::make_shared<PeerEar>(shared_from_this()));
}

}  // namespace jaxring
