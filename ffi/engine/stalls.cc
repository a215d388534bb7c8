// Warnings of waits that last: in what, for whom, and what that one does. Long before a deadline ends them.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "engine/engine.h"
#include "engine/site.h"

namespace jaxring {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(500);
// Operations that are younger are not looked at: a worker passes by a lane that is.
constexpr auto kYoung = std::chrono::seconds(1);
// When the second warning is due, and each one after that: times the first one's wait.
constexpr int kSecond = 6, kFurther = 30;
constexpr size_t kStalls = 64;  // of sentences that nobody has fetched

int DueAfter(int told) { return told == 0 ? 1 : kSecond + (told - 1) * kFurther; }

}  // namespace

void Engine::WarnOfStalls(Clock::time_point now) {
  if (options_.stall_warning_s <= 0 || now - stalls_looked_ < kLookEvery) return;
  stalls_looked_ = now;
  const auto unit =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.stall_warning_s));
  std::map<uint64_t, Stall> seen;
  uint64_t version;
  for (auto& op : Active(&version)) {
    if (op->failed() || now - op->begun() < std::min<Clock::duration>(unit, kYoung)) continue;
    seen[op->key()] = {op->Progress(), op->begun(), 0, op, ""};
  }
  if (!seen.empty()) bell_->NotifyAll();
  std::vector<std::weak_ptr<Site>> watched;
  {
    std::lock_guard lock(mutex_);
    watched = watched_;
  }
  for (auto& weak : watched) {
    const auto site = weak.lock();
    std::vector<Activity> activities;
    if (site) site->Describe(now, &activities);
    for (Activity& activity : activities) {
      // What planning waits for changes meanwhile.
      const std::string name = activity.what.substr(0, activity.what.find(", which waits for"));
      const uint64_t id = activity.key != 0 ? activity.key : std::hash<std::string>()(name);
      seen[id] = {0, now - std::chrono::milliseconds(activity.age_ms), 0, nullptr, std::move(activity.what)};
    }
  }
  std::vector<Stall*> due;
  for (auto& [id, stall] : seen) {
    if (const auto known = stalls_.find(id); known != stalls_.end()) {
      const bool moved = known->second.progress != stall.progress;
      stall.told = moved ? 0 : known->second.told;
      stall.since = moved ? now : std::max(stall.since, known->second.since);
    }
    if (now - stall.since >= DueAfter(stall.told) * unit) due.push_back(&stall);
  }
  std::string text;
  std::sort(due.begin(), due.end(), [](const Stall* a, const Stall* b) { return a->since < b->since; });
  for (Stall* stall : due) {
    // A process that waits for one that waits itself leaves the first warning to it: that one knows the cause.
    std::map<int, int> waited_for;
    const std::string waits = stall->op ? DescribeWaiting(*stall->op, &waited_for) : "";
    // A thread is looking into its lanes at this moment, so they cannot be asked: at the next look, but not for ever.
    const bool looked_at = stall->op && waited_for.empty();
    if (looked_at && now - stall->since < DueAfter(stall->told) * unit + 10 * kLookEvery) continue;
    const bool polite =
        !waited_for.empty() && std::all_of(waited_for.begin(), waited_for.end(), [&](const auto& entry) {
          return entry.first == stall->op->plan().process || WaitsTogether(entry.first, *stall->op);
        });
    if (polite && now - stall->since < kSecond * unit) continue;
    // Several wait, as a rule, for the same: the first one speaks for them.
    if (text.empty()) text = DescribeStall(*stall, waits, now);
    ++stall->told;
  }
  for (auto& [id, stall] : seen) stall.op.reset();
  stalls_.swap(seen);
  if (text.empty()) return;
  std::lock_guard lock(request_mutex_);
  if (stall_texts_.size() < kStalls) stall_texts_.push_back(std::move(text));
  stall_ready_.notify_one();
}

std::string Engine::DescribeStall(const Stall& stall, const std::string& waits, Clock::time_point now) {
  char waited[32], limit[64] = "";
  std::snprintf(waited, sizeof waited, "%.0f s", std::chrono::duration<double>(now - stall.since).count());
  if (stall.op) std::snprintf(limit, sizeof limit, " It fails %g s after it began.", stall.op->plan().timeout_s);
  return std::string("has waited ") + waited + " in " +
         (stall.op ? stall.op->What() + ": " + waits : stall.what + ".") + limit +
         (stall.told == 0 ? " JAXRING_STALL_WARNING says when to warn; 0: never." : "");
}

std::optional<std::string> Engine::NextStall(double timeout_s) {
  std::unique_lock lock(request_mutex_);
  stall_ready_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                        [this] { return requests_closed_ || !stall_texts_.empty(); });
  if (stall_texts_.empty()) return std::nullopt;
  std::string text = std::move(stall_texts_.front());
  stall_texts_.pop_front();
  return text;
}

}  // namespace jaxring
