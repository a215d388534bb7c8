#include "network/paths.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace jaxring {
namespace {

using std::chrono::milliseconds;

// Kernels send again after 200 ms at least, so the same bytes were lost twice in a row, or once for longer than that.
// Counted from the first look that finds something under way, which comes up to kCheckEvery late.
constexpr auto kSilent = milliseconds(300);
// One that works again by itself by then is not to be connected again.
constexpr auto kHealed = std::chrono::seconds(2);
constexpr auto kCheckEvery = milliseconds(50);
// The other end has tried to connect again for as long as this one's kernel, which has given up.
constexpr auto kGrace = std::chrono::seconds(2);

std::string Seconds(std::chrono::duration<double> time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", time.count());
  return text;
}

}  // namespace

std::unique_ptr<Stream> Paths::Add(std::unique_ptr<Stream> stream, const End& end, Poller* poller) {
  {
    std::lock_guard lock(mutex_);
    if (!entries_.try_emplace(end).second) throw std::invalid_argument("there is a connection of that name already");
  }
  const auto forget = [this, end] {
    std::lock_guard lock(mutex_);
    entries_.erase(end);
  };
  std::unique_ptr<ResumableStream> made;
  try {
    made = std::make_unique<ResumableStream>(std::move(stream), poller, forget, get_state_);
  } catch (...) {
    forget();
    throw;
  }
  std::lock_guard lock(mutex_);
  entries_.at(end).stream = made.get();
  return made;
}

Paths::Entry& Paths::At(const End& end) {
  const auto it = entries_.find(end);
  if (it == entries_.end() || it->second.stream == nullptr)
    throw std::invalid_argument("there is no such connection any more");
  return it->second;
}

void Paths::Suspend(const End& end, uint64_t attempt) {
  std::lock_guard lock(mutex_);
  Entry& entry = At(end);
  entry.stream->Suspend(attempt);
  entry.told = true;
}

uint64_t Paths::Drain(const End& end, uint64_t attempt) {
  std::lock_guard lock(mutex_);
  return At(end).stream->Drain(attempt);
}

void Paths::Resume(const End& end, uint64_t attempt, std::unique_ptr<Stream> next, uint64_t received, bool detour) {
  std::lock_guard lock(mutex_);
  Entry& entry = At(end);
  entry.stream->Resume(attempt, std::move(next), received);
  entry.told = false;
  entry.told_at = {};
  entry.detour = detour;
}

bool Paths::IsLost(const End& end) const {
  std::lock_guard lock(mutex_);
  const auto it = entries_.find(end);
  return it != entries_.end() && it->second.stream && !it->second.stream->over() && it->second.told;
}

bool Paths::Lives(const End& end) const {
  std::lock_guard lock(mutex_);
  const auto it = entries_.find(end);
  return it != entries_.end() && it->second.stream && !it->second.stream->over();
}

void Paths::Fail(const End& end, const std::string& why, Ending ending) {
  std::lock_guard lock(mutex_);
  if (const auto it = entries_.find(end); it != entries_.end() && it->second.stream) {
    it->second.stream->Fail(why, ending);
  }
}

void Paths::Check(Time now) {
  std::lock_guard lock(mutex_);
  if (now - checked_at_ < kCheckEvery) return;
  checked_at_ = now;
  for (auto& [end, entry] : entries_) {
    if (!entry.stream || entry.stream->over()) continue;
    ResumableStream& stream = *entry.stream;
    if (end.dialled) stream.Observe(now);
    const auto since = stream.suspended_at();
    const bool lost = since != Time{};
    // The other end goes on trying where an attempt has begun, also one that has failed there alone.
    const bool tries = end.dialled || entry.told || !stream.confirmed();
    const std::chrono::duration<double> limit = tries ? limit_ : kGrace;
    // The kernel may give up only after this has been told of, and that is when the time began.
    const auto began = entry.told_at != Time{} ? std::min(since, entry.told_at) : since;
    if ((lost && now - began > limit) || (entry.told && stream.IsSilent(std::chrono::ceil<milliseconds>(limit_)))) {
      stream.Fail("no path to its host has answered for " + Seconds(limit_), Ending::kUnreachable);
      continue;
    }
    if (!lost && entry.told && now - entry.told_at > kHealed && !stream.IsSilent(kSilent)) {
      entry.told = false;
      entry.told_at = {};
    }
    if (!end.dialled || entry.told) continue;
    if (lost) {
      lost_.push_back({end.name, "cannot be reached"});
    } else if (stream.IsSilent(kSilent)) {
      lost_.push_back({end.name, "has acknowledged nothing for " + Seconds(kSilent)});
    } else if (stream.IsTrickling(now)) {
      lost_.push_back({end.name, "takes less than a twentieth of what it took before"});
    } else {
      continue;
    }
    entry.told = true;
    entry.told_at = now;
    news_.notify_all();
  }
}

std::optional<std::vector<Paths::Lost>> Paths::TakeLost(double timeout_s) {
  std::unique_lock lock(mutex_);
  news_.wait_for(lock, std::chrono::duration<double>(timeout_s), [this] { return closed_ || !lost_.empty(); });
  if (closed_) return std::nullopt;
  return std::exchange(lost_, {});
}

void Paths::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  news_.notify_all();
}

bool Paths::Settled() const {
  std::lock_guard lock(mutex_);
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& item) {
    const auto& [end, entry] = item;
    return !entry.stream || entry.stream->over() || ((!end.dialled || !entry.told) && entry.stream->IsDelivered());
  });
}

std::pair<int, int> Paths::Count() const {
  std::lock_guard lock(mutex_);
  std::pair<int, int> count{0, 0};
  for (const auto& [end, entry] : entries_) {
    if (!end.dialled || !entry.stream || entry.stream->over()) continue;
    ++count.first;
    count.second += entry.detour || entry.told;
  }
  return count;
}

}  // namespace jaxring
