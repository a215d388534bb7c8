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
    MutexLock lock(mutex_);
    if (!entries_.try_emplace(end).second) throw std::invalid_argument("there is a connection of that name already");
  }
  const auto forget = [this, end] {
    MutexLock lock(mutex_);
    entries_.erase(end);
  };
  std::unique_ptr<ResumableStream> made;
  try {
    made = std::make_unique<ResumableStream>(std::move(stream), poller, forget, get_state_);
  } catch (...) {
    forget();
    throw;
  }
  MutexLock lock(mutex_);
  entries_.at(end).stream = made.get();
  return made;
}

void Paths::Add(const std::shared_ptr<MovableLink>& link, const End& end) {
  MutexLock lock(mutex_);
  Entry entry;
  entry.link = link;
  entry.of_link = true;
  if (!entries_.try_emplace(end, std::move(entry)).second) {
    throw std::invalid_argument("there is a connection of that name already");
  }
  link->SetMovable();
}

std::shared_ptr<MovableLink> Paths::Link(const End& end) {
  MutexLock lock(mutex_);
  const auto it = entries_.find(end);
  std::shared_ptr<MovableLink> link = it == entries_.end() ? nullptr : it->second.link.lock();
  if (!link) throw std::invalid_argument("there is no such link any more");
  return link;
}

void Paths::Switched(const End& end, bool detour) {
  MutexLock lock(mutex_);
  if (const auto it = entries_.find(end); it != entries_.end()) Works(it->second, detour);
}

void Paths::Works(Entry& entry, bool detour) {
  entry.reconnecting = false;
  entry.reported_at = {};
  entry.detour = detour;
}

std::shared_ptr<Movable> Paths::Connection(const Entry& entry) {
  // A stream takes its entry out before it goes.
  if (entry.stream != nullptr) return std::shared_ptr<Movable>(std::shared_ptr<void>(), entry.stream);
  return entry.link.lock();
}

Paths::Entry& Paths::At(const End& end) {
  const auto it = entries_.find(end);
  if (it == entries_.end() || it->second.stream == nullptr)
    throw std::invalid_argument("there is no such connection any more");
  return it->second;
}

void Paths::Suspend(const End& end, uint64_t attempt) {
  MutexLock lock(mutex_);
  Entry& entry = At(end);
  entry.stream->Suspend(attempt);
  entry.reconnecting = true;
}

uint64_t Paths::Drain(const End& end, uint64_t attempt) {
  MutexLock lock(mutex_);
  return At(end).stream->Drain(attempt);
}

void Paths::Resume(const End& end, uint64_t attempt, std::unique_ptr<Stream> next, uint64_t received, bool detour) {
  MutexLock lock(mutex_);
  Entry& entry = At(end);
  entry.stream->Resume(attempt, std::move(next), received);
  Works(entry, detour);
}

bool Paths::IsLost(const End& end) const {
  MutexLock lock(mutex_);
  const auto it = entries_.find(end);
  if (it == entries_.end()) return false;
  const std::shared_ptr<Movable> connection = Connection(it->second);
  return connection && !connection->over() && it->second.reconnecting;
}

bool Paths::Lives(const End& end) const {
  MutexLock lock(mutex_);
  const auto it = entries_.find(end);
  if (it == entries_.end()) return false;
  const std::shared_ptr<Movable> connection = Connection(it->second);
  return connection && !connection->over();
}

void Paths::Fail(const End& end, const std::string& why, Ending ending) {
  std::shared_ptr<Movable> link;
  {
    MutexLock lock(mutex_);
    const auto it = entries_.find(end);
    if (it == entries_.end()) return;
    if (it->second.stream != nullptr) return it->second.stream->Fail(why, ending);
    link = it->second.link.lock();
  }
  // A link's end is told to the engine, which has locks of its own.
  if (link) link->Fail(why, ending);
}

void Paths::Check(Time now) {
  // Links end by what they see, or are ended below, while this is not locked: see Fail.
  std::vector<std::shared_ptr<Movable>> links;
  std::vector<std::pair<std::shared_ptr<Movable>, std::string>> failed;
  {
    MutexLock lock(mutex_);
    if (now - checked_at_ < kCheckEvery) return;
    checked_at_ = now;
    for (const auto& [end, entry] : entries_) {
      if (!entry.stream) links.push_back(entry.link.lock());
    }
  }
  for (const auto& link : links) {
    if (link && !link->over()) link->Observe(now);
  }
  {
    MutexLock lock(mutex_);
    std::erase_if(entries_, [](const auto& item) { return item.second.of_link && item.second.link.expired(); });
    for (auto& [end, entry] : entries_) {
      std::shared_ptr<Movable> connection = Connection(entry);
      if (!connection || connection->over()) continue;
      if (entry.stream && end.dialled) connection->Observe(now);
      const std::string why = Check(end, entry, *connection, now);
      if (why.empty()) continue;
      if (entry.stream) {
        connection->Fail(why, Ending::kUnreachable);
      } else {
        failed.emplace_back(std::move(connection), why);
      }
    }
  }
  for (const auto& [link, why] : failed) link->Fail(why, Ending::kUnreachable);
}

std::string Paths::Check(const End& end, Entry& entry, Movable& connection, Time now) {
  const auto since = connection.suspended_at();
  const bool lost = since != Time{};
  // The other end goes on trying where an attempt has begun, also one that has failed there alone.
  const bool tries = end.dialled || entry.reconnecting || connection.PeerKnows();
  // The kernel may give up only after this has been reported, and that is when the time began.
  const auto began = entry.reported_at != Time{} ? std::min(since, entry.reported_at) : since;
  if (lost && !tries && now - began > kGrace) {
    return "the connection with it broke, and it has made no other one within " + Seconds(kGrace);
  }
  if ((lost && tries && now - began > limit_) ||
      (entry.reconnecting && connection.IsSilent(std::chrono::ceil<milliseconds>(limit_)))) {
    return "no path to its host has answered for " + Seconds(limit_);
  }
  if (!lost && entry.reconnecting && now - entry.reported_at > kHealed && !connection.IsSilent(kSilent)) {
    entry.reconnecting = false;
    entry.reported_at = {};
  }
  if (!end.dialled || entry.reconnecting) return "";
  if (lost) {
    lost_.push_back({end.name, "cannot be reached"});
  } else if (connection.IsSilent(kSilent)) {
    lost_.push_back({end.name, "has acknowledged nothing for " + Seconds(kSilent)});
  } else if (connection.IsTrickling(now)) {
    lost_.push_back({end.name, "takes less than a twentieth of what it took before"});
  } else {
    return "";
  }
  entry.reconnecting = true;
  entry.reported_at = now;
  news_.NotifyAll();
  return "";
}

std::optional<std::vector<Paths::Lost>> Paths::TakeLost(double timeout_s) {
  const auto deadline = After(timeout_s);
  MutexLock lock(mutex_);
  while (!closed_ && lost_.empty() && news_.WaitUntil(mutex_, deadline)) {
  }
  if (closed_) return std::nullopt;
  return std::exchange(lost_, {});
}

void Paths::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  news_.NotifyAll();
}

bool Paths::Settled() const {
  MutexLock lock(mutex_);
  return std::all_of(entries_.begin(), entries_.end(), [](const auto& item) {
    const auto& [end, entry] = item;
    const std::shared_ptr<Movable> connection = Connection(entry);
    return !connection || connection->over() || ((!end.dialled || !entry.reconnecting) && connection->IsDelivered());
  });
}

std::pair<int, int> Paths::Count() const {
  MutexLock lock(mutex_);
  std::pair<int, int> count{0, 0};
  for (const auto& [end, entry] : entries_) {
    if (!end.dialled) continue;
    const std::shared_ptr<Movable> connection = Connection(entry);
    if (!connection || connection->over()) continue;
    ++count.first;
    count.second += entry.detour || entry.reconnecting;
  }
  return count;
}

}  // namespace jaxring
