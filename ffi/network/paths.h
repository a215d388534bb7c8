// The connections of this process that can go on over another path, by the names that both of their ends know.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/condition_variable.h"
#include "base/mutex.h"
#include "transport/core/movable.h"
#include "transport/core/poller.h"
#include "transport/core/stream.h"
#include "transport/tcp/resumable.h"

namespace jaxring {

class Paths {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Which connection it is: its name, and which of the two ends. Both may be in one process.
  struct End {
    std::string name;
    bool dialled = false;
    bool operator<(const End& other) const { return std::tie(name, dialled) < std::tie(other.name, other.dialled); }
  };
  struct Lost {
    std::string name, why;
  };

  // `limit_s`: so long after its connection was lost the peer counts as unreachable. `get_state`: see ResumableStream.
  explicit Paths(double limit_s, TcpWatch::GetState get_state = GetTcpState)
      : limit_(limit_s), get_state_(std::move(get_state)) {}

  // Makes a connection resumable. The stream must be destroyed before this object is. Throws std::invalid_argument
  // where there is one of that name.
  std::unique_ptr<Stream> Add(std::unique_ptr<Stream> stream, const End& end, Poller* poller);
  // Has a link go on over other ports. It belongs to those who have it. Throws as above.
  void Add(const std::shared_ptr<MovableLink>& link, const End& end);
  // That link, which may have ended. Throws std::invalid_argument where there is none any more.
  std::shared_ptr<MovableLink> Link(const End& end);
  // The link has switched to other ports; `detour` as below.
  void Switched(const End& end, bool detour);
  // The connections that this process has dialled and that have failed since the last call; it is to connect them
  // again. Waits for one, `timeout_s` at most. Nothing once this is closed.
  std::optional<std::vector<Lost>> TakeLost(double timeout_s);
  // Ends all waits, now and from now on.
  void Close();

  // As ResumableStream's. Throw std::invalid_argument, too, where there is no such connection any more.
  void Suspend(const End& end, uint64_t attempt);
  uint64_t Drain(const End& end, uint64_t attempt);
  // `detour`: the path is not the one that was chosen at first.
  void Resume(const End& end, uint64_t attempt, std::unique_ptr<Stream> next, uint64_t received, bool detour);
  // Whether the connection has failed, as TakeLost says, and does not work again.
  bool IsLost(const End& end) const;
  // Whether there is such a connection, and it has not ended.
  bool Lives(const End& end) const;
  // The peer cannot be reached on any path (kUnreachable), or its process has ended (kNoGoodbye). Nothing if there is
  // no such connection any more.
  void Fail(const End& end, const std::string& why, Ending ending);

  // Whether the peers' kernels have all that was written. A process that ends before takes with it what is kept.
  bool Settled() const;
  // Looks for connections that have failed. To be called every 50 ms or so.
  void Check(Time now);
  // How many connections this process has dialled, and how many of these take a detour or are lost.
  std::pair<int, int> Count() const;

 private:
  struct Entry {
    ResumableStream* stream = nullptr;  // removes the entry when it is destroyed; null while it is made
    std::weak_ptr<MovableLink> link;    // instead of a stream
    bool of_link = false;
    // Its failure has been reported by TakeLost, or the other end has begun an attempt.
    bool reconnecting = false;
    Time reported_at{};
    bool detour = false;
  };
  Entry& At(const End& end) JAXRING_REQUIRES(mutex_);
  static std::shared_ptr<Movable> Connection(const Entry& entry);
  static void Works(Entry& entry, bool detour);
  // Returns why it is to end for good, "" if it is not.
  std::string Check(const End& end, Entry& entry, Movable& connection, Time now) JAXRING_REQUIRES(mutex_);

  const std::chrono::duration<double> limit_;
  const TcpWatch::GetState get_state_;
  mutable Mutex mutex_;  // taken before that of a stream or link
  ConditionVariable news_;
  bool closed_ JAXRING_GUARDED_BY(mutex_) = false;
  std::map<End, Entry> entries_ JAXRING_GUARDED_BY(mutex_);
  std::vector<Lost> lost_ JAXRING_GUARDED_BY(mutex_);
  Time checked_at_ JAXRING_GUARDED_BY(mutex_){};
};

}  // namespace jaxring
