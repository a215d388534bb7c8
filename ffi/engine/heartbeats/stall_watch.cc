#include "engine/heartbeats/stall_watch.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

namespace jaxring {
namespace {

constexpr auto kCheckEvery = std::chrono::milliseconds(500);
// Younger operations are not examined: examining a lane makes it busy, and workers skip busy lanes.
constexpr auto kYoung = std::chrono::seconds(1);
// When the second warning is due, and the interval of further ones, in multiples of the first warning's time.
constexpr int kSecond = 6, kFurther = 30;

int DueAfter(int warnings) { return warnings == 0 ? 1 : kSecond + (warnings - 1) * kFurther; }

}  // namespace

std::string StallWatch::Describe(const Stall& stall, const std::string& waits, Clock::time_point now) {
  char waited[32], limit[64] = "";
  std::snprintf(waited, sizeof waited, "%.0f s", std::chrono::duration<double>(now - stall.since).count());
  if (stall.op) std::snprintf(limit, sizeof limit, " It fails %g s after it began.", stall.op->plan().timeout_s);
  return std::string("has waited ") + waited + " in " +
         (stall.op ? stall.op->What() + ": " + waits : stall.what + ".") + limit +
         (stall.warnings == 0 ? " JAXRING_STALL_WARNING says when to warn; 0: never." : "");
}

bool StallWatch::IsDue(Clock::time_point now) const { return warning_s_ > 0 && now - looked_at_ >= kCheckEvery; }

std::optional<std::string> StallWatch::Look(Clock::time_point now,
                                            const std::vector<std::shared_ptr<Operation>>& active,
                                            std::vector<Activity> waiting) {
  looked_at_ = now;
  const auto unit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(warning_s_));
  std::map<uint64_t, Stall> seen;
  for (const auto& op : active) {
    if (op->failed() || now - op->begun() < std::min<Clock::duration>(unit, kYoung)) continue;
    seen[op->key()] = {op->Progress(), op->begun(), 0, op, ""};
  }
  examined_ = !seen.empty();
  for (Activity& activity : waiting) {
    // Without what planning waits for, which changes meanwhile.
    const std::string name = activity.what.substr(0, activity.what.find(", which waits for"));
    const uint64_t id = activity.key != 0 ? activity.key : std::hash<std::string>()(name);
    seen[id] = {0, now - std::chrono::milliseconds(activity.age_ms), 0, nullptr, std::move(activity.what)};
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
    const std::string waits = stall->op ? reporter_->DescribeWaiting(*stall->op, &waited_for) : "";
    // All lanes are busy at this moment and cannot be examined. Try again at the next checks, but not for ever.
    const bool all_busy = stall->op && waited_for.empty();
    if (all_busy && now - stall->since < DueAfter(stall->warnings) * unit + 10 * kCheckEvery) continue;
    const bool peers_warn = !waited_for.empty() && reporter_->AllWaitTogether(waited_for, *stall->op);
    if (peers_warn && now - stall->since < kSecond * unit) continue;
    // Several stalls usually have one cause, so only the oldest is reported.
    if (text.empty()) text = Describe(*stall, waits, now);
    ++stall->warnings;
  }
  for (auto& [id, stall] : seen) stall.op.reset();
  stalls_.swap(seen);
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace jaxring
