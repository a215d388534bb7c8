// Warns of long waits, well before their deadlines: which operation waits, for which peer, and what that peer does.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "engine/engine.h"
#include "engine/site.h"

namespace jaxring {
namespace {

constexpr auto kCheckEvery = std::chrono::milliseconds(500);
// Younger operations are not examined: examining a lane makes it busy, and workers skip busy lanes.
constexpr auto kYoung = std::chrono::seconds(1);
// When the second warning is due, and the interval of further ones, in multiples of the first warning's time.
constexpr int kSecond = 6, kFurther = 30;

int DueAfter(int warnings) { return warnings == 0 ? 1 : kSecond + (warnings - 1) * kFurther; }

std::string DescribeStall(const Stall& stall, const std::string& waits, Clock::time_point now) {
  char waited[32], limit[64] = "";
  std::snprintf(waited, sizeof waited, "%.0f s", std::chrono::duration<double>(now - stall.since).count());
  if (stall.op) std::snprintf(limit, sizeof limit, " It fails %g s after it began.", stall.op->plan().timeout_s);
  return std::string("has waited ") + waited + " in " +
         (stall.op ? stall.op->What() + ": " + waits : stall.what + ".") + limit +
         (stall.warnings == 0 ? " JAXRING_STALL_WARNING says when to warn; 0: never." : "");
}

}  // namespace

void Engine::WarnOfStalls(Clock::time_point now) {
  if (options_.stall_warning_s <= 0 || now - stalls_checked_at_ < kCheckEvery) return;
  stalls_checked_at_ = now;
  const auto unit =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.stall_warning_s));
  std::map<uint64_t, Stall> seen;
  uint64_t version;
  for (auto& op : Active(&version)) {
    if (op->failed() || now - op->begun() < std::min<Clock::duration>(unit, kYoung)) continue;
    seen[op->key()] = {op->Progress(), op->begun(), 0, op, ""};
  }
  if (!seen.empty()) network_.doorbell().NotifyAll();
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
      // Without what planning waits for, which changes meanwhile.
      const std::string name = activity.what.substr(0, activity.what.find(", which waits for"));
      const uint64_t id = activity.key != 0 ? activity.key : std::hash<std::string>()(name);
      seen[id] = {0, now - std::chrono::milliseconds(activity.age_ms), 0, nullptr, std::move(activity.what)};
    }
  }
  std::vector<Stall*> due;
  for (auto& [id, stall] : seen) {
    if (const auto known = stalls_.find(id); known != stalls_.end()) {
      const bool moved = known->second.progress != stall.progress;
      stall.warnings = moved ? 0 : known->second.warnings;
      stall.since = moved ? now : std::max(stall.since, known->second.since);
    }
    if (now - stall.since >= DueAfter(stall.warnings) * unit) due.push_back(&stall);
  }
  std::string text;
  std::sort(due.begin(), due.end(), [](const Stall* a, const Stall* b) { return a->since < b->since; });
  for (Stall* stall : due) {
    // If the awaited processes wait in the same operation, they give the first warning: they are nearer to the cause.
    std::map<int, int> waited_for;
    const std::string waits = stall->op ? DescribeWaiting(*stall->op, &waited_for) : "";
    // All lanes are busy at this moment and cannot be examined. Try again at the next checks, but not for ever.
    const bool all_busy = stall->op && waited_for.empty();
    if (all_busy && now - stall->since < DueAfter(stall->warnings) * unit + 10 * kCheckEvery) continue;
    const bool peers_warn =
        !waited_for.empty() && std::all_of(waited_for.begin(), waited_for.end(), [&](const auto& entry) {
          return entry.first == stall->op->plan().process || WaitsTogether(entry.first, *stall->op);
        });
    if (peers_warn && now - stall->since < kSecond * unit) continue;
    // Several stalls usually have one cause, so only the oldest is reported.
    if (text.empty()) text = DescribeStall(*stall, waits, now);
    ++stall->warnings;
  }
  for (auto& [id, stall] : seen) stall.op.reset();
  stalls_.swap(seen);
  if (!text.empty()) python_.AddStall(std::move(text));
}

}  // namespace jaxring
