// How an RDMA link goes on over other ports: what both ends do, in the order of transport/core/movable.h, and when it
// is to be done.
#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "transport/verbs/verbs.h"
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
// not hear otherwise that the path has failed, on which the receiver may have lost its queue pairs, or cannot say so.
constexpr auto kProbe = std::chrono::seconds(1);

}  // namespace

void VerbsPump::CheckAttempt(uint64_t attempt) const {
  if (closed()) throw std::invalid_argument("this link has ended: " + end_->reason);
  if (attempt != attempt_) throw std::invalid_argument("another attempt to go on over other ports has begun");
  if (!next_) throw std::invalid_argument("this attempt to go on over other ports has failed");
}

std::string VerbsPump::Offer(uint64_t attempt, const Place& place) {
  std::unique_ptr<verbs::Endpoint> dropped;  // destroyed when nothing is locked any more; so below
  MutexLock renewing(renewal_mutex_);
  if (closed()) throw std::invalid_argument("this link has ended: " + end_->reason);
  if (attempt <= attempt_) throw std::invalid_argument("a later attempt to go on over other ports has begun");
  attempt_ = attempt;
  dropped = std::move(next_);
  verbs::EndpointOptions options = VerbsOptions(place);
  {
    MutexLock lock(mutex_);
    tried_.insert(options.device + " port " + std::to_string(options.port));
  }
  next_ = endpoint()->Another(std::move(options));
  try {
    regions_.Prepare(*next_);
  } catch (const std::runtime_error&) {
    dropped = std::move(next_);
    throw;
  }
  return verbs::ToHex(next_->offer());
}

void VerbsPump::Prepare(uint64_t attempt, const std::string& peer_offer) {
  std::unique_ptr<verbs::Endpoint> dropped;
  MutexLock renewing(renewal_mutex_);
  CheckAttempt(attempt);
  try {
    next_->Prepare(verbs::FromHex(peer_offer));
  } catch (const std::runtime_error&) {
    dropped = std::move(next_);
    throw;
  }
}

void VerbsPump::Try(uint64_t attempt, double timeout_s) {
  std::unique_ptr<verbs::Endpoint> dropped;
  RelockableMutexLock renewing(renewal_mutex_);
  CheckAttempt(attempt);
  const auto until = steady_clock::now() + std::chrono::duration<double>(timeout_s);
  std::vector<Event> done;
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
    dropped = std::move(next_);
    throw std::runtime_error(dropped->error());
  }
  MutexLock lock(mutex_);
  handover_ = Handover::kBegun;
}

std::string VerbsPump::Switch(uint64_t attempt, const std::string& received) {
  MutexLock renewing(renewal_mutex_);
  CheckAttempt(attempt);
  MutexLock lock(mutex_);
  if (closed()) throw std::invalid_argument("this link has ended: " + end_->reason);
  std::vector<Event> last;
  endpoint_->Stop(&last, kReturned);
  bool good = endpoint_->error().empty() || endpoint_->unreachable();
  for (const Event& event : last) good = Handle(event) && good;
  if (!good) {
    End(endpoint_->error(), true);
    throw std::runtime_error(end_->reason);
  }
  poller_->Remove(endpoint_->fd());
  // The receiver's old one goes, with its registrations, before the sender hears what has arrived. The sender's stays
  // until Discard, since its messages and the next attempt need not wait for that.
  if (sends()) retired_.push_back(std::move(endpoint_));
  endpoint_ = std::move(next_);
  regions_.Switch();
  tried_.clear();
  suspended_at_ = Time{};
  awaited_ = false;
  observed_at_ = stalled_since_ = completed_at_ = switched_at_ = steady_clock::now();
  handover_ = Handover::kSwitched;
  try {
    std::string own = Renew(received);
    poller_->Add(endpoint_->fd(), EPOLLIN, shared_from_this());
    EnableEventsLocked();
    return own;
  } catch (const std::runtime_error& error) {
    End(error.what(), true);
    throw;
  }
}

void VerbsPump::Discard() {
  std::vector<std::unique_ptr<verbs::Endpoint>> retired;  // destroyed when nothing is locked any more
  MutexLock renewing(renewal_mutex_);
  retired.swap(retired_);
}

void VerbsPump::Observe(Time now) {
  MutexLock lock(mutex_);
  if (closed() || lost()) return;
  PumpLocked();
  if (closed() || lost()) return;
  // The peer does not know that this end has switched: nothing comes over these ports, nor does the link's end.
  if ((handover_ == Handover::kSwitched || !confirmed_) && now - switched_at_ > kUnconfirmed) return Lose();
  if (completions_ != observed_ || completed_at_ == Time{}) completed_at_ = now;
  bool awaits = true;
  if (completions_ == observed_ && !Awaits(now - completed_at_ > kProbe, &awaits)) PumpLocked();
  if (completions_ != observed_ || !awaits || !awaited_) stalled_since_ = now;
  awaited_ = awaits && completions_ == observed_;  // otherwise nobody has asked whether anything is under way
  observed_ = completions_;
  observed_at_ = now;
}

bool VerbsPump::IsSilent(std::chrono::milliseconds limit) const {
  const Time since = stalled_since_;
  // What has come since the last look is not known, which may be long ago on a busy machine.
  return since != Time{} && !lost() && observed_at_.load() - since > limit;
}

bool VerbsPump::IsDelivered() {
  MutexLock lock(mutex_);
  return !sends() || (!lost() && !Waiting() && !MustHear());
}

void VerbsPump::Fail(const std::string& why, Ending ending) {
  MutexLock lock(mutex_);
  std::string text = (endpoint_->error().empty() ? endpoint_->Describe() : endpoint_->error()) + "; " + why;
  std::string ports;
  for (const std::string& port : tried_) ports += (ports.empty() ? "" : ", ") + port;
  if (!ports.empty()) text += "; the ports of this host that were tried: " + ports;
  End(text, true, ending);
}

uint32_t VerbsPump::RegisterMore(const DirectRegion& region) {
  MutexLock renewing(renewal_mutex_);
  bool refused = false;
  const uint32_t key = regions_.Add(*endpoint(), next_.get(), region, &refused);
  // This thread may have other links to serve, and so leaves the destruction to the one that makes attempts.
  if (refused) retired_.push_back(std::move(next_));
  return key;
}

bool VerbsSendPump::Awaits(bool ask, bool* awaits) {
  const bool good = Mark(ask || MustHear());
  *awaits = Waiting();
  return good;
}

bool VerbsSendPump::IsTrickling(Time now) {
  MutexLock lock(mutex_);
  // Where a request that asks for its completion was under way the last time, and still is, the device was never idle.
  bool busy = false;
  int64_t under_way = 0;
  for (Queue& queue : queues_) {
    busy = busy || (!queue.sent.empty() && queue.sent.front().id <= queue.asked_before);
    queue.asked_before = queue.asked;
    for (const Sent& sent : queue.sent) under_way += BytesOf(sent);
  }
  busy_ = busy_ && busy;
  if (!trickle_.IsDue(now)) return false;
  return trickle_.Look(now, acked_, std::exchange(busy_, true), under_way);
}

std::string VerbsSendPump::Renew(const std::string& received) {
  std::istringstream words(received);
  std::array<std::set<uint64_t>, 2> unknown;  // positions that were sent, and whose arrival nobody has told of
  for (Queue& queue : queues_) {
    for (const Sent& sent : queue.sent) {
      if (sent.ring != nullptr) unknown[sent.ring == &rings_[1]].insert(sent.position);
    }
    queue.sent.clear();
    queue.unsignaled = 0;
    queue.asked_before = queue.asked = 0;
  }
  std::array<std::vector<uint64_t>, 2> missing;
  for (uint32_t protocol : {0, 1}) {
    Ring& ring = rings_[protocol];
    uint64_t head = 0, have = 0;
    if (!(words >> head >> have) || head < ring.peer_head || head > ring.next) {
      throw std::runtime_error("the peer says that it has received other messages than were sent");
    }
    ring.peer_head = head;
    const auto has = [head, have](uint64_t p) { return p < head || (have >> (p - head) & 1) != 0; };
    for (uint64_t position : unknown[protocol]) {
      if (has(position)) ring.reader.Release(position);
    }
    for (uint64_t position = head; position < ring.next; ++position) {
      if (has(position)) continue;
      if (unknown[protocol].count(position) == 0) {
        throw std::runtime_error("the peer's device has acknowledged a message and has not delivered it");
      }
      missing[protocol].push_back(position);
    }
  }
  std::string keys;
  std::getline(words, keys);
  peer_keys_ = verbs::ToKeys(keys);
  own_keys_ = regions_.keys();
  trickle_ = {};
  acked_ = 0;
  // Where the device refuses a request the endpoint fails, and the link ends.
  for (uint32_t protocol : {0, 1}) {
    for (uint64_t position : missing[protocol]) Write(rings_[protocol], protocol, position);
  }
  return "";
}

std::string VerbsRecvPump::Renew(const std::string&) {
  std::ostringstream words;
  credits_under_way_ = 0;
  for (Ring& ring : rings_) {
    const uint32_t slots = ring.memory.shape().slots;
    // Slots keep their flags when they have been read, so it does not matter whether others are read meanwhile.
    ring.credited = ring.memory.control().head.load(std::memory_order_acquire);
    uint64_t have = 0;
    for (uint64_t i = 0; i < slots; ++i) {
      const uint64_t position = ring.credited + i;
      have |= uint64_t{ring.memory.header(position).flag.load(std::memory_order_relaxed) == position + 1} << i;
    }
    words << ring.credited << ' ' << have << ' ';
  }
  words << verbs::ToText(regions_.keys());
  return words.str();
}

}  // namespace jaxring
