// Busy-polling threads: threads of an engine that poll the sources of messages themselves while they wait. While there
// is one, sources disable their events, since nothing need be woken for a message; they are enabled again before a
// thread sleeps. NAPI treats interrupts the same way.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.h"

namespace jaxring {

class BusyPollers {
 public:
  class Source {
   public:
    virtual ~Source() = default;
    // Enables events if they are disabled and takes the messages that have arrived. Any thread may call it.
    virtual void EnableEvents() = 0;
  };
  void Add(std::weak_ptr<Source> source);
  // Whether there ever was one.
  bool has_sources() const { return has_sources_.load(std::memory_order_relaxed); }

  // The calling thread begins to poll.
  void Begin() { count_.fetch_add(1, std::memory_order_seq_cst); }
  // The calling thread stops polling. `others_wait`: other threads sleep until there are events.
  void End(bool others_wait);
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
  // Enables the events of all sources. To be called before a thread sleeps that waits for a message.
  void EnableEvents();
  // Whether a source that has just disabled its events may leave them so. The source must hold the lock that its
  // EnableEvents takes.
  bool MayDisableEvents();

 private:
  std::atomic<int> count_{0};
  std::atomic<bool> disabled_{false};  // the events of some source may be
  std::atomic<bool> has_sources_{false};
  Mutex mutex_;
  std::vector<std::weak_ptr<Source>> sources_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
