// How an RDMA link goes on over other ports, and the memory that is registered with those that it has: what both ends
// do, in the order of transport/core/movable.h, and when it is to be done. The link's pump has one.
#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "base/mutex.h"
#include "transport/core/direct_memory.h"
#include "transport/core/movable.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_disposal.h"
#include "transport/verbs/verbs_regions.h"

namespace jaxring {

class VerbsMover final : public MovableLink {
 public:
  VerbsMover(VerbsPump* pump, std::shared_ptr<verbs::Endpoint> endpoint);

  void SetMovable() override { pump_->movable_ = true; }
  std::string Offer(uint64_t attempt, const Place& place) override;
  void Prepare(uint64_t attempt, const std::string& peer_offer) override;
  void Try(uint64_t attempt, double timeout_s) override;
  std::string Switch(uint64_t attempt, const std::string& received) override;
  void TakeOver(uint64_t attempt, int fd) override;
  void Observe(Time now) override;
  Time suspended_at() const override { return pump_->suspended_at_; }
  bool over() const override { return pump_->closed(); }
  bool IsDelivered() override;
  bool IsSilent(std::chrono::milliseconds limit) const override;
  bool IsTrickling(Time now) override;
  bool PeerKnows() const override { return true; }
  void Fail(const std::string& why, Ending ending) override;

  // See DirectSend and DirectMemory.
  uint32_t Register(const DirectRegion& region);
  const std::string& device() const { return device_; }

 private:
  void CheckAttempt(uint64_t attempt) const JAXRING_REQUIRES(mutex_);
  // Gives the attempt up. The thread that has made it need not wait for the device.
  void Drop() JAXRING_REQUIRES(mutex_) { disposal_.Add(std::move(next_)); }

  VerbsPump* const pump_;
  const std::string device_;  // of the first endpoint
  // The thread that carries all GPU messages waits for it, so endpoints are destroyed when it is free, but for the
  // receiver's old ones.
  Mutex mutex_ JAXRING_ACQUIRED_BEFORE(pump_->mutex_);
  // The pump's endpoint, which changes under both mutexes.
  std::shared_ptr<verbs::Endpoint> now_ JAXRING_GUARDED_BY(mutex_);
  verbs::Regions regions_ JAXRING_GUARDED_BY(mutex_);
  // An attempt to go on over other ports: its number, its endpoint, and all ports that were tried since the link last
  // went over to others.
  uint64_t attempt_ JAXRING_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<verbs::Endpoint> next_ JAXRING_GUARDED_BY(mutex_);
  std::set<std::string> tried_ JAXRING_GUARDED_BY(pump_->mutex_);
  VerbsDisposal disposal_;
};

}  // namespace jaxring
