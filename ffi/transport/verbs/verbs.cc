// The parts that both ends of an RDMA link share: completions, the control connection, and the end of the link.
#include "transport/verbs/verbs.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>

#include "transport/verbs/verbs_mover.h"

namespace jaxring {
namespace {

constexpr int kLastWordMs = 500;
constexpr auto kCheckPort = std::chrono::milliseconds(250);
// How long messages that a goodbye has overtaken are waited for.
constexpr auto kOvertaken = std::chrono::seconds(5);

class ControlHandler final : public Poller::Handler {
 public:
  explicit ControlHandler(std::shared_ptr<VerbsPump> pump) : pump_(std::move(pump)) {}
  void OnEvents(uint32_t) override { pump_->OnControlReadable(); }

 private:
  std::shared_ptr<VerbsPump> pump_;
};

}  // namespace

VerbsPump::VerbsPump(std::shared_ptr<void> link, std::unique_ptr<verbs::Endpoint> endpoint, Descriptor socket,
                     Poller* poller, LinkEnd* end, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end)
    : link_(std::move(link)),
      endpoint_(std::move(endpoint)),
      control_(std::move(socket)),
      own_doorbell_(own_doorbell),
      poller_(poller),
      end_(end),
      on_end_(std::move(on_end)),
      busy_pollers_(busy_pollers),
      mover_(std::make_unique<VerbsMover>(this, endpoint_)) {}

VerbsPump::~VerbsPump() = default;

void VerbsPump::Start() {
  {
    MutexLock lock(mutex_);
    poller_->Add(endpoint_->fd(), EPOLLIN, shared_from_this());
    WatchControl();
  }
  OnEvents(0);
}

std::shared_ptr<MovableLink> VerbsPump::movable() {
  MutexLock lock(mutex_);
  if (endpoint_->port().iwarp()) return nullptr;
  return {shared_from_this(), mover_.get()};
}

void VerbsPump::WatchControl() {
  poller_->Add(control_.fd(), EPOLLIN | EPOLLRDHUP, std::make_shared<ControlHandler>(shared_from_this()));
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
  if (!endpoint_->Arm()) return End(endpoint_->failure().error, true);
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
    watch_.Count(events_.size());
    // Events before a failure are complete.
    for (const Event& event : events_) good = Handle(event) && good;
    good = good && Advance();
    if (events_.empty()) break;
    any = true;
  }
  if (good) CompleteLocked();
  if (good && !armed_ && WaitsForCredit()) EnableEventsLocked();
  if (good || closed() || lost()) return any;
  // When a peer ends, its queue pairs end, too, and an iWARP device reports this at once. The peer's last message on
  // the control connection, or the end of it, may still be on its way.
  const bool leaving = endpoint_->failure().closed_by_peer;
  if (leaving && !control_.HasSpoken()) control_.Await(kLastWordMs);
  if (Listen() || (leaving && control_.HasSpoken())) {
    End(control_.LastWord(), false);
  } else if (movable_ && endpoint_->failure().unreachable) {
    Lose();
  } else {
    End(endpoint_->failure().error, true);
  }
  return any;
}

bool VerbsPump::Misbehaved() {
  endpoint_->Fail("the peer sent a notice that no jaxring process of this version sends");
  return false;
}

void VerbsPump::End(const std::string& why, bool tell, Ending ending) {
  if (closed()) return;
  if (control_.goodbye()) ending = Ending::kGoodbye;
  end_->Close(why, ending);
  if (tell) control_.SayGaveUp(why);
  own_doorbell_->Notify();
  if (on_end_) on_end_(why, ending);
  poller_->Remove(endpoint_->fd());
  poller_->Remove(control_.fd());
}

void VerbsPump::OnControlReadable() {
  MutexLock lock(mutex_);
  if (closed() || !Listen()) return;
  // Messages that the peer wrote before it closed the link are still valid.
  PumpLocked();
  if (closed()) return;
  if (!control_.goodbye() || AllHere()) return End(control_.LastWord(), false);
  // The goodbye has overtaken messages: soft-iWARP completes a write when TCP has its bytes. CheckPort ends the wait.
  control_.CloseAt(std::chrono::steady_clock::now());
  poller_->Remove(control_.fd());
}

void VerbsPump::CompleteLocked() {
  if (!control_.goodbye() || closed() || !AllHere()) return;
  if (!end_->complete.exchange(true, std::memory_order_acq_rel)) control_.SayAllHere();
  if (control_.closed_at() != Time{}) End(control_.LastWord(), false);
}

bool VerbsPump::Listen() {
  using Read = VerbsControl::Read;
  while (!control_.failed()) {
    const Read read = control_.Receive();
    if (read == Read::kNothing) return false;
    if (read == Read::kSome) {
      while (const auto received = control_.Next()) {
        Act(*received);
      }
      continue;
    }
    if (control_.HasGivenUp() || !movable_ || (read == Read::kEnded && handover_.IsOver())) return true;
    // Its path has failed, or the peer may go on with another one.
    control_.Fail();
    poller_->Remove(control_.fd());
    if (!handover_.switched()) Lose();
  }
  return false;
}

void VerbsPump::Act(const VerbsControl::Received& received) {
  switch (received.word) {
    case VerbsControl::Word::kLost:
      if (movable_ && !handover_.switched()) Lose();
      break;
    case VerbsControl::Word::kTakenOver:
      handover_.Confirm();
      break;
    case VerbsControl::Word::kGoodbye:
      OnGoodbye(received.text);
      CompleteLocked();
      break;
  }
}

void VerbsPump::CheckPort() {
  if (!mutex_.TryLock()) return;
  MutexLock lock(mutex_, std::adopt_lock);
  if (closed()) return;
  const auto now = std::chrono::steady_clock::now();
  if (control_.closed_at() != Time{} && now - control_.closed_at() > kOvertaken) {
    return End(control_.LastWord(), false);
  }
  // A link that can go on over other ports is watched by Observe.
  if (movable_ || !Waiting() || now - checked_ < kCheckPort) return;
  const bool seen = checked_ != Time{} && now - checked_ < 3 * kCheckPort;
  checked_ = now;
  if (endpoint_->port().IsActive() || !seen) {
    down_since_ = now;
    return;
  }
  if (now - down_since_ < endpoint_->port().Patience()) return;
  endpoint_->FailForPort();
  End(endpoint_->failure().error, true);
}

void VerbsPump::SayGoodbye() {
  MutexLock lock(mutex_);  // the link may go on with another control connection meanwhile
  control_.SayGoodbye("");
}

void VerbsPump::Lose() {
  if (closed() || lost()) return;
  suspended_at_ = std::chrono::steady_clock::now();
  if (!sends()) control_.SayLost();
}

}  // namespace jaxring
