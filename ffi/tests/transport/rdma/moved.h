// A link by RDMA that goes on over another cable: the devices at the ends of the two cables, and an attempt to move the
// link, step by step, as jaxring/world/port_pairs.py makes it.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "tests/transport/rdma/traffic.h"

namespace jaxring::test {

inline const std::string kName = "a";
inline const Paths::End kFrom{kName, true}, kTo{kName, false};

// The device at an end of a cable.
inline verbs::EndpointOptions Device(int pair, int end) {
  verbs::EndpointOptions options = VerbsDevices(pair == 0 ? "JAXRING_TEST_VERBS" : "JAXRING_TEST_VERBS_SPARE").at(end);
  // As by default. A device that sends again soon fills a slow cable with that, so that nothing gets through.
  options.timeout = verbs::EndpointOptions{}.timeout;
  return options;
}

inline std::string Interface(int pair, int end) {
  return verbs::ReadLine("/sys/class/infiniband/" + Device(pair, end).device + "/parent");
}

inline void WaitUntilActive(int pair) {
  for (int end : {0, 1}) {
    const std::string state = "/sys/class/infiniband/" + Device(pair, end).device + "/ports/1/state";
    CHECK(Within(60, [&] { return verbs::ReadLine(state) == "4: ACTIVE"; }));
  }
}

// A link between two engines, and what jaxring/world/failover.py does when it fails.
class Moved {
 public:
  explicit Moved(uint32_t seed, double link_timeout_s = 60, uint32_t slot_bytes = 4096)
      : pair_(slot_bytes, kName, link_timeout_s), gives_up_(seed != 0), random_(seed) {
    close(std::exchange(pair_.cut, -1));  // its end is to be seen
  }

  Pair& pair() { return pair_; }
  int now() const { return now_; }
  int moves() const { return moves_; }
  // How it has failed. To be read when Heal has returned.
  const std::string& whys() const { return whys_; }

  // False if an attempt fails; sometimes it is given up on the way.
  bool Move(int pair) {
    std::lock_guard lock(mutex_);
    ++attempt_;
    try {
      const auto from = pair_.engines[0]->network().paths().Link(kFrom),
                 to = pair_.engines[1]->network().paths().Link(kTo);
      const std::string offer = from->Offer(attempt_, PlaceOf(Device(pair, 0)));
      const std::string theirs = to->Offer(attempt_, PlaceOf(Device(pair, 1)));
      to->Prepare(attempt_, offer);
      if (GivesUp(16)) return false;
      from->Prepare(attempt_, theirs);
      from->Try(attempt_, 1);
      if (GivesUp(16)) return false;
      const std::string received = to->Switch(attempt_, "");
      if (GivesUp(8)) return false;
      int fds[2];
      CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
      to->TakeOver(attempt_, fds[1]);
      if (GivesUp(8)) return close(fds[0]), false;
      try {
        from->Switch(attempt_, received);
      } catch (const std::exception&) {
        Refuse(*from, fds[0]);
        throw;
      }
      from->TakeOver(attempt_, fds[0]);
      pair_.engines[0]->network().paths().Switched(kFrom, pair != 0);
      now_ = pair;
      ++moves_;
      return true;
    } catch (const std::runtime_error&) {
      return false;
    } catch (const std::invalid_argument&) {
      return false;
    }
  }

  // Has the link go on wherever it can, until the engine ends.
  void Heal() {
    Paths& paths = pair_.engines[0]->network().paths();
    while (auto lost = paths.TakeLost(0.1)) {
      for (const Paths::Lost& each : *lost) whys_ += each.why + "; ";
      for (int next = 1 - now_; !lost->empty() && paths.IsLost(kFrom); next = 1 - next) {
        if (!Move(next)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }

 private:
  // The new connection tells the receiver why the sender does not go on.
  void Refuse(MovableLink& from, int fd) {
    try {
      from.TakeOver(attempt_, fd);
    } catch (const std::invalid_argument&) {  // as it does where the link has ended
    }
  }
  bool GivesUp(uint32_t one_in) { return gives_up_ && random_() % one_in == 0; }

  Pair pair_;
  const bool gives_up_;
  std::mutex mutex_;
  std::mt19937 random_;
  uint64_t attempt_ = 0;
  std::string whys_;
  std::atomic<int> now_{0}, moves_{0};
};

}  // namespace jaxring::test
