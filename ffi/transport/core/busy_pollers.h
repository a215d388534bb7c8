// Threads of an engine that look themselves for what peers send, while they wait for it. What comes meanwhile need wake
// nobody: the sources of messages rest, and ask for events again before a thread sleeps.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace jaxring {

class BusyPollers {
 public:
  class Source {
   public:
    virtual ~Source() = default;
    // Asks for events again if it rests, and takes what has come. Any thread.
    virtual void EnableEvents() = 0;
  };
  void Add(std::weak_ptr<Source> source);
  // Whether there ever was one.
  bool has_sources() const { return has_sources_.load(std::memory_order_relaxed); }

  // A thread looks from now on.
  void Begin() { count_.fetch_add(1, std::memory_order_seq_cst); }
  // It does so no more; `others_wait`: some sleep until there are events.
  void End(bool others_wait);
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
  // Before a thread sleeps that waits for a message.
  void EnableEvents();
  // Whether a source that has just stopped asking for events may stay so. Its EnableEvents waits until this has been
  // decided.
  bool MayDisableEvents();

 private:
  std::atomic<int> count_{0};
  std::atomic<bool> resting_{false};  // some source may be
  std::atomic<bool> has_sources_{false};
  std::mutex mutex_;
  std::vector<std::weak_ptr<Source>> sources_;
};

}  // namespace jaxring
