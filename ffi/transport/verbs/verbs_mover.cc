#include "transport/verbs/verbs_mover.h"

#include <sys/epoll.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "transport/verbs/verbs_connector.h"

namespace jaxring {
namespace {

using std::chrono::steady_clock;

// How long the device is waited for that returns the receive entries of a queue pair which has ended.
constexpr auto kReturned = std::chrono::milliseconds(500);
// How long the receiving end, which has switched, waits for the sending one to go on. That one waits 4 s for its answer
// (port_pairs.py).
constexpr auto kUnconfirmed = std::chrono::seconds(5);
// A sender on whose link nothing has completed for so long has the peer's device acknowledge an empty write. It would
// not learn otherwise that the path has failed, on which the receiver may have lost its queue pairs, or cannot say so.
constexpr auto kProbe = std::chrono::seconds(1);

}  // namespace

VerbsMover::VerbsMover(VerbsPump* pump, std::shared_ptr<verbs::Endpoint> endpoint)
    : pump_(pump), device_(endpoint->port().options().device), now_(std::move(endpoint)) {}

void VerbsMover::CheckAttempt(uint64_t attempt) const {
  if (over()) throw std::invalid_argument("this link has ended: " + pump_->end_->reason);
  if (attempt != attempt_) throw std::invalid_argument("another attempt to go on over other ports has begun");
  if (!next_) throw std::invalid_argument("this attempt to go on over other ports has failed");
}

std::string VerbsMover::Offer(uint64_t attempt, const Place& place) {
  disposal_.AwaitFew();
  MutexLock renewing(mutex_);
  if (over()) throw std::invalid_argument("this link has ended: " + pump_->end_->reason);
  if (attempt <= attempt_) throw std::invalid_argument("a later attempt to go on over other ports has begun");
  attempt_ = attempt;
  Drop();
  verbs::EndpointOptions options = VerbsOptions(place);
  {
    MutexLock lock(pump_->mutex_);
    tried_.insert(options.device + " port " + std::to_string(options.port));
  }
  next_ = now_->Another(std::move(options));
  try {
    regions_.Prepare(*next_);
  } catch (const std::runtime_error&) {
    Drop();
    throw;
  }
  return verbs::ToHex(next_->offer());
}

void VerbsMover::Prepare(uint64_t attempt, const std::string& peer_offer) {
  MutexLock renewing(mutex_);
  CheckAttempt(attempt);
  try {
    next_->Prepare(verbs::FromHex(peer_offer));
  } catch (const std::runtime_error&) {
    Drop();
    throw;
  }
}

void VerbsMover::Try(uint64_t attempt, double timeout_s) {
  RelockableMutexLock renewing(mutex_);
  CheckAttempt(attempt);
  const auto until = steady_clock::now() + std::chrono::duration<double>(timeout_s);
  std::vector<verbs::Endpoint::Event> done;
  bool good = true;
  for (int i = 0; i < next_->queue_pairs(); ++i) good = good && next_->Mark(i, 1);
  while (good && static_cast<int>(done.size()) < next_->queue_pairs()) {
    good = next_->Poll(&done);
    if (!good || static_cast<int>(done.size()) == next_->queue_pairs()) break;
    if (steady_clock::now() > until) {
      next_->Fail(next_->Describe() + ": the peer's port does not answer");
      good = false;
      break;
    }
    // Memory may be registered meanwhile.
    renewing.Unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    renewing.Lock();
    CheckAttempt(attempt);
  }
  if (!good) {
    const std::string why = next_->failure().error;
    Drop();
    throw std::runtime_error(why);
  }
  MutexLock lock(pump_->mutex_);
  pump_->handover_.Begin();
}

std::string VerbsMover::Switch(uint64_t attempt, const std::string& received) {
  MutexLock renewing(mutex_);
  CheckAttempt(attempt);
  MutexLock lock(pump_->mutex_);
  if (over()) throw std::invalid_argument("this link has ended: " + pump_->end_->reason);
  std::shared_ptr<verbs::Endpoint>& endpoint = pump_->endpoint_;
  std::vector<verbs::Endpoint::Event> last;
  endpoint->Stop(&last, kReturned);
  bool good = endpoint->failure().error.empty() || endpoint->failure().unreachable;
  for (const auto& event : last) good = pump_->Handle(event) && good;
  if (!good) {
    pump_->End(endpoint->failure().error, true);
    throw std::runtime_error(pump_->end_->reason);
  }
  pump_->poller_->Remove(endpoint->fd());
  std::shared_ptr<verbs::Endpoint> old = std::exchange(endpoint, next_);
  now_ = std::move(next_);
  // The receiver's old one goes, with its registrations, before the sender learns what has arrived. The sender's
  // messages and the next attempt need not wait for the end of its own.
  if (pump_->sends()) disposal_.Add(std::move(old));
  old.reset();
  regions_.Switch();
  tried_.clear();
  pump_->suspended_at_ = Time{};
  const auto now = steady_clock::now();
  pump_->watch_.Restart(now);
  pump_->handover_.SwitchAt(now);
  try {
    std::string own = pump_->Renew(received, regions_.keys());
    pump_->poller_->Add(endpoint->fd(), EPOLLIN, pump_->shared_from_this());
    pump_->EnableEventsLocked();
    return own;
  } catch (const std::runtime_error& error) {
    pump_->End(error.what(), true);
    throw;
  }
}

void VerbsMover::TakeOver(uint64_t attempt, int fd) {
  Descriptor socket(fd);
  MutexLock renewing(mutex_);
  MutexLock lock(pump_->mutex_);
  VerbsControl& control = pump_->control_;
  const bool switched = attempt == attempt_ && pump_->handover_.switched();
  if (switched && !over()) {
    pump_->Listen();  // the old one's last words
    if (control.HasGivenUp()) pump_->End(control.LastWord(), false);
  }
  if (!switched || over()) {
    // The peer may listen to this connection alone.
    if (over()) VerbsControl::SayGaveUp(fd, pump_->end_->reason);
    throw std::invalid_argument("this attempt to go on over other ports is not the latest one, or the link has ended");
  }
  pump_->poller_->Remove(control.fd());
  control.TakeOver(std::move(socket), pump_->sends(), pump_->lost(),
                   pump_->end_->complete.load(std::memory_order_acquire));
  pump_->handover_.TakeOver(pump_->sends());
  pump_->WatchControl();
}

void VerbsMover::Observe(Time now) {
  MutexLock lock(pump_->mutex_);
  if (over() || pump_->lost()) return;
  pump_->PumpLocked();
  if (over() || pump_->lost()) return;
  // The peer does not know that this end has switched: nothing comes over these ports, nor does the link's end.
  if (pump_->handover_.IsUnconfirmed(now, kUnconfirmed)) return pump_->Lose();
  VerbsWatch& watch = pump_->watch_;
  bool awaits = true;
  if (watch.Begin(now) && !pump_->Awaits(watch.IdleFor(now) > kProbe, &awaits)) pump_->PumpLocked();
  watch.End(now, awaits);
}

bool VerbsMover::IsSilent(std::chrono::milliseconds limit) const {
  MutexLock lock(pump_->mutex_);
  return !pump_->lost() && pump_->watch_.IsSilent(limit);
}

bool VerbsMover::IsTrickling(Time now) {
  MutexLock lock(pump_->mutex_);
  return pump_->IsTrickling(now);
}

bool VerbsMover::IsDelivered() {
  MutexLock lock(pump_->mutex_);
  return !pump_->sends() || (!pump_->lost() && !pump_->Waiting() && !pump_->WaitsForCredit());
}

void VerbsMover::Fail(const std::string& why, Ending ending) {
  MutexLock lock(pump_->mutex_);
  const verbs::Endpoint& endpoint = *pump_->endpoint_;
  std::string text = (endpoint.failure().error.empty() ? endpoint.Describe() : endpoint.failure().error) + "; " + why;
  std::string ports;
  for (const std::string& port : tried_) ports += (ports.empty() ? "" : ", ") + port;
  if (!ports.empty()) text += "; the ports of this host that were tried: " + ports;
  pump_->End(text, true, ending);
}

uint32_t VerbsMover::Register(const DirectRegion& region) {
  MutexLock renewing(mutex_);
  bool refused = false;
  const uint32_t key = regions_.Add(*now_, next_.get(), region, &refused);
  if (refused) Drop();
  return key;
}

}  // namespace jaxring
