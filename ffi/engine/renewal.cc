// Recovery from an error: all operations in flight fail, and the job begins a new epoch without the links, plans and
// counts of the old one.
#include <algorithm>

#include "engine/engine.h"
#include "engine/site.h"

namespace jaxring {

bool Engine::Halt(const std::string& reason, bool tell, int except) {
  bool news;
  ControlFrame halted;
  {
    std::lock_guard lock(mutex_);
    news = !aborted_.load(std::memory_order_relaxed);
    if (news) abort_reason_ = reason;
    aborted_.store(true);
    tell = tell && !halt_told_;
    halt_told_ |= tell;
    halted.text = abort_reason_;
  }
  halted.kind = ControlFrame::Kind::kHalted;
  if (tell) network_.peers().TellAll(halted, except);
  if (news) network_.Kick();
  return news;
}

std::optional<std::string> Engine::Halted() {
  if (!aborted_.load()) return std::nullopt;
  std::lock_guard lock(mutex_);
  return abort_reason_;
}

void Engine::FailRefused(Operation& op) {
  // The caller has counted the operation in unfinished_. So either Renew waits for it, or it fails here.
  if (std::optional<std::string> why = Halted()) {
    op.Fail(Status::Error(Code::kAborted, op.What() + ": " + *why));
  } else if (op.plan().epoch != network_.epoch()) {
    op.Fail(Status::Error(Code::kAborted, op.What() + ": it was begun before the job was rebuilt"));
  }
}

bool Engine::Renew(uint64_t epoch, double timeout_s) {
  const auto until = Clock::now() + std::chrono::duration<double>(timeout_s);
  network_.Kick();
  while (unfinished_.load() != 0) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  network_.BeginEpoch(epoch);
  std::vector<std::shared_ptr<Site>> sites;
  {
    std::lock_guard lock(sites_mutex_);
    for (const auto& entry : sites_) {
      if (auto site = entry.second->weak_from_this().lock()) sites.push_back(std::move(site));
    }
  }
  const Status over = Status::Error(Code::kAborted, "jaxring: " + Halted().value_or("the job is being rebuilt"));
  for (const auto& site : sites) site->Renew(epoch, over);
  network_.DropConnections();
  python_.ClearControlMessages();
  std::lock_guard lock(mutex_);
  counters_of_keys_.clear();
  detached_failures_.clear();
  troubled_ = halt_told_ = false;
  version_.fetch_add(1, std::memory_order_release);  // makes workers drop their references to ended operations
  network_.doorbell().NotifyAll();
  return true;
}

void Engine::Resume() {
  std::lock_guard lock(mutex_);
  if (!ending_) aborted_.store(false);
}

uint64_t Engine::Register(Site* site) {
  std::lock_guard lock(sites_mutex_);
  sites_.emplace(next_site_++, site);
  return network_.epoch();
}

void Engine::Unregister(Site* site) {
  std::lock_guard lock(sites_mutex_);
  std::erase_if(sites_, [site](const auto& entry) { return entry.second == site; });
}

}  // namespace jaxring
