#include "transport/core/busy_pollers.h"

namespace jaxring {

void BusyPollers::Add(std::weak_ptr<Source> source) {
  MutexLock lock(mutex_);
  std::erase_if(sources_, [](const auto& known) { return known.expired(); });
  sources_.push_back(std::move(source));
  has_sources_.store(true, std::memory_order_relaxed);
}

void BusyPollers::End(bool others_wait) {
  if (count_.fetch_sub(1, std::memory_order_seq_cst) == 1 && others_wait) EnableEvents();
}

void BusyPollers::EnableEvents() {
  if (!disabled_.load(std::memory_order_seq_cst) || !disabled_.exchange(false, std::memory_order_seq_cst)) return;
  std::vector<std::shared_ptr<Source>> live;
  {
    MutexLock lock(mutex_);
    for (const auto& source : sources_) {
      if (auto kept = source.lock()) live.push_back(std::move(kept));
    }
  }
  for (const auto& source : live) source->EnableEvents();
}

bool BusyPollers::MayDisableEvents() {
  if (!any()) return false;
  // The last polling thread lowers the count before it reads disabled_: either it sees this write, or the load below
  // sees that it is gone. The write is an exchange because qemu-user (7.2, Arm on x86-64) may move a load before a
  // sequentially consistent store, which it emulates by a plain one, but never before an exchange.
  disabled_.exchange(true, std::memory_order_seq_cst);
  return count_.load(std::memory_order_seq_cst) > 0;
}

}  // namespace jaxring
