// The call sites of an engine, and what they have in common: the counts of executions, which go on when a program is
// compiled again.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "engine/operation/operation.h"
#include "network/peers/control_frames.h"

namespace jaxring {

class Sites {
 public:
  // Site::Make adds each site, and a site removes itself.
  void Add(const std::shared_ptr<Site>& site);
  void Remove(const Site& site);
  // Those that are not being destroyed.
  std::vector<std::shared_ptr<Site>> All();

  // Has the deadlines of a site's executions checked that wait for participants or plans.
  void Watch(std::weak_ptr<Site> site);
  // Checks them. With `halted`, the reason why the engine is, they fail. Sites that wait no more are not watched on.
  void CheckDeadlines(Clock::time_point now, const std::string* halted);
  // The executions of watched sites that have not become operations yet.
  std::vector<Activity> Waiting(Clock::time_point now);

  // Counts the executions that have begun under a plan's key, over all sites that have it. Receives have a counter of
  // their own.
  std::shared_ptr<std::atomic<uint64_t>> CounterOf(uint64_t key, bool recv);
  // The failure of a buffered send whose caller had already returned. The next call under the same key takes it.
  void KeepFailure(uint64_t key, const Status& failure);
  Status TakeFailure(uint64_t key);
  // Drops counts and failures, as a new epoch begins.
  void Forget();

 private:
  Mutex sites_mutex_;                                                               // no other mutex is taken under it
  std::map<uint64_t, std::weak_ptr<Site>> sites_ JAXRING_GUARDED_BY(sites_mutex_);  // by id, so in the order of making
  Mutex mutex_;                                                                     // nor under this one
  std::vector<std::weak_ptr<Site>> watched_ JAXRING_GUARDED_BY(mutex_);
  std::map<std::pair<uint64_t, bool>, std::shared_ptr<std::atomic<uint64_t>>> counters_ JAXRING_GUARDED_BY(mutex_);
  std::map<uint64_t, Status> failures_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
