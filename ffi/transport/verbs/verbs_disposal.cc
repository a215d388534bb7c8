#include "transport/verbs/verbs_disposal.h"

#include <system_error>
#include <utility>

namespace jaxring {
namespace {

constexpr size_t kFew = 3;

}  // namespace

VerbsDisposal::~VerbsDisposal() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    ends_ = true;
    thread = std::move(thread_);
  }
  changed_.NotifyAll();
  if (thread.joinable()) thread.join();
}

void VerbsDisposal::Add(std::shared_ptr<verbs::Endpoint> endpoint) {
  if (!endpoint) return;
  MutexLock lock(mutex_);
  left_.push_back(std::move(endpoint));
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error&) {  // no thread can be started: they wait for the next one, or the link's end
    }
  }
  changed_.NotifyAll();
}

void VerbsDisposal::AwaitFew() {
  MutexLock lock(mutex_);
  while (thread_.joinable() && left_.size() + destroying_ > kFew) changed_.Wait(mutex_);
}

void VerbsDisposal::Run() {
  while (true) {
    std::vector<std::shared_ptr<verbs::Endpoint>> taken;
    {
      MutexLock lock(mutex_);
      while (left_.empty() && !ends_) changed_.Wait(mutex_);
      if (left_.empty()) return;
      taken.swap(left_);
      destroying_ = taken.size();
    }
    while (!taken.empty()) {
      taken.pop_back();
      MutexLock lock(mutex_);
      --destroying_;
      changed_.NotifyAll();
    }
  }
}

}  // namespace jaxring
