// A mutex whose users clang checks: which members it guards (JAXRING_GUARDED_BY), which functions run under it
// (JAXRING_REQUIRES) or take it themselves (JAXRING_EXCLUDES), and which mutexes are taken before which others
// (JAXRING_ACQUIRED_BEFORE). The attributes say nothing to other compilers, and there is no more code than with
// std::mutex and std::lock_guard. `make tidy` reports what contradicts them; docs/concepts/locks.md lists the mutexes.
#pragma once

#include <mutex>

#ifdef __clang__
#define JAXRING_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define JAXRING_THREAD_SAFETY(attribute)
#endif

#define JAXRING_GUARDED_BY(mutex) JAXRING_THREAD_SAFETY(guarded_by(mutex))
// What the pointer refers to is guarded; the pointer itself is not.
#define JAXRING_PT_GUARDED_BY(mutex) JAXRING_THREAD_SAFETY(pt_guarded_by(mutex))
#define JAXRING_ACQUIRED_BEFORE(...) JAXRING_THREAD_SAFETY(acquired_before(__VA_ARGS__))
#define JAXRING_ACQUIRED_AFTER(...) JAXRING_THREAD_SAFETY(acquired_after(__VA_ARGS__))
// The caller holds the mutex, before the call and after it.
#define JAXRING_REQUIRES(...) JAXRING_THREAD_SAFETY(requires_capability(__VA_ARGS__))
// The caller does not hold the mutex: the function takes it, or calls something that does.
#define JAXRING_EXCLUDES(...) JAXRING_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define JAXRING_ACQUIRE(...) JAXRING_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define JAXRING_RELEASE(...) JAXRING_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define JAXRING_TRY_ACQUIRE(...) JAXRING_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
// For a function that is right for a reason that the analysis does not see. Say the reason beside it.
#define JAXRING_NO_THREAD_SAFETY_ANALYSIS JAXRING_THREAD_SAFETY(no_thread_safety_analysis)

namespace jaxring {

class JAXRING_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void Lock() JAXRING_ACQUIRE() { mutex_.lock(); }
  void Unlock() JAXRING_RELEASE() { mutex_.unlock(); }
  bool TryLock() JAXRING_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  // Tells the analysis that the caller holds it, where that is so for a reason that it does not see.
  void AssertHeld() const JAXRING_THREAD_SAFETY(assert_capability(this)) {}

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Holds a mutex until the end of the scope.
class JAXRING_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) JAXRING_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  // For a mutex that the calling thread has locked already.
  MutexLock(Mutex& mutex, std::adopt_lock_t) JAXRING_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() JAXRING_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// The same, but it may be unlocked before the end of the scope, and locked again.
class JAXRING_THREAD_SAFETY(scoped_lockable) RelockableMutexLock {
 public:
  explicit RelockableMutexLock(Mutex& mutex) JAXRING_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~RelockableMutexLock() JAXRING_RELEASE() {
    if (locked_) mutex_.Unlock();
  }
  RelockableMutexLock(const RelockableMutexLock&) = delete;
  RelockableMutexLock& operator=(const RelockableMutexLock&) = delete;
  void Lock() JAXRING_ACQUIRE() {
    mutex_.Lock();
    locked_ = true;
  }
  void Unlock() JAXRING_RELEASE() {
    locked_ = false;
    mutex_.Unlock();
  }

 private:
  Mutex& mutex_;
  bool locked_ = true;
};

}  // namespace jaxring
