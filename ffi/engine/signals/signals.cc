#include "engine/signals/signals.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "base/mutex.h"

namespace jaxring {
namespace {

struct Watched {
  const int number;
  std::atomic<uint32_t> came{0};
  uint32_t returned = 0;                                 // by AwaitSignal
  std::atomic<const struct sigaction*> former{nullptr};  // the wrapped handler; never freed, since it may be running
};
Watched watched_signals[] = {{SIGINT}, {SIGTERM}};

std::atomic<int> signal_fd{-1};
std::atomic<bool> watching_signals{false};
Mutex signals_mutex;

void Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(signal_fd.load(), &one, sizeof one);
}

bool Handles(const struct sigaction& action) {
  if ((action.sa_flags & SA_SIGINFO) != 0) return action.sa_sigaction != nullptr;
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

void OnSignal(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  const struct sigaction* former = nullptr;
  for (Watched& each : watched_signals) {
    if (each.number != number) continue;
    each.came.fetch_add(1);
    former = each.former.load();
  }
  Wake();
  errno = saved;
  if ((former->sa_flags & SA_SIGINFO) != 0) {
    former->sa_sigaction(number, info, context);
  } else {
    former->sa_handler(number);
  }
}

bool Ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &OnSignal;
}

void Watch(Watched& each) JAXRING_REQUIRES(signals_mutex) {
  struct sigaction now;
  if (sigaction(each.number, nullptr, &now) != 0 || Ours(now) || !Handles(now)) return;
  if ((now.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) return;  // it wants to be called once
  each.former.store(new struct sigaction(now));
  struct sigaction ours = now;
  ours.sa_sigaction = &OnSignal;
  ours.sa_flags |= SA_SIGINFO;
  struct sigaction replaced;
  sigaction(each.number, &ours, &replaced);
  // Another thread may have installed one meanwhile.
  if (Handles(replaced)) {
    if (!Ours(replaced)) each.former.store(new struct sigaction(replaced));
  } else {
    sigaction(each.number, &replaced, nullptr);
  }
}

}  // namespace

void WatchSignals() {
  {
    MutexLock lock(signals_mutex);
    if (signal_fd.load() < 0) signal_fd.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (signal_fd.load() < 0) return;
    watching_signals.store(true);
  }
  WatchSignalsAgain();
}

void WatchSignalsAgain() {
  if (!watching_signals.load(std::memory_order_acquire)) return;
  MutexLock lock(signals_mutex);
  for (Watched& each : watched_signals) Watch(each);
}

int AwaitSignal(double timeout_s) {
  const int timeout_ms = timeout_s < 0 ? -1 : static_cast<int>(std::ceil(1000 * timeout_s));
  for (bool late = false; watching_signals.load(); late = true) {
    for (Watched& each : watched_signals) {
      if (each.returned == each.came.load()) continue;
      ++each.returned;
      return each.number;
    }
    if (late && timeout_s >= 0) return 0;
    // A forked child shares this descriptor and may write to it, which looks like a timeout here.
    pollfd descriptor{signal_fd.load(), POLLIN, 0};
    if (poll(&descriptor, 1, timeout_ms) > 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t n = read(descriptor.fd, &count, sizeof count);
    }
  }
  return 0;
}

void StopWatching() {
  watching_signals.store(false);
  if (signal_fd.load() >= 0) Wake();
}

std::string HandlerFile(int number) {
  struct sigaction now;
  if (sigaction(number, nullptr, &now) != 0) return "";
  for (const Watched& each : watched_signals) {
    if (each.number == number && Ours(now)) now = *each.former.load();
  }
  Dl_info info;
  if (!Handles(now) || dladdr(reinterpret_cast<void*>(now.sa_handler), &info) == 0) return "";
  return info.dli_fname == nullptr ? "" : info.dli_fname;
}

void EndBySignal(int number) {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(number, &action, nullptr);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  kill(getpid(), number);
  std::abort();  // not reached: the signal is delivered before kill returns
}

}  // namespace jaxring
