// Destroys the endpoints that an RDMA link has left, or has tried in vain, on a thread of their own: soft-RoCE takes 3
// s for one with writes under way to an address that does not answer, and the link works or is tried elsewhere
// meanwhile.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/condition_variable.h"
#include "base/mutex.h"
#include "transport/verbs/endpoint/verbs_endpoint.h"

namespace jaxring {

class VerbsDisposal {
 public:
  VerbsDisposal() = default;
  VerbsDisposal(const VerbsDisposal&) = delete;
  // Waits until all are destroyed.
  ~VerbsDisposal();
  // Has one destroyed soon; nothing for null. Any thread may call it, with a lock or without.
  void Add(std::shared_ptr<verbs::Endpoint> endpoint);
  // Waits until there are few: each keeps memory registered, of which a process may have only so much.
  void AwaitFew();

 private:
  void Run();

  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::shared_ptr<verbs::Endpoint>> left_ JAXRING_GUARDED_BY(mutex_);
  size_t destroying_ JAXRING_GUARDED_BY(mutex_) = 0;
  bool ends_ JAXRING_GUARDED_BY(mutex_) = false;
  std::thread thread_ JAXRING_GUARDED_BY(mutex_);  // from the first one on
};

}  // namespace jaxring
