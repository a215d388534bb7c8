// What the operations of this process wait for, and what is known of the processes that they wait for, as sentences.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/operation/operation.h"
#include "engine/records/recorder.h"
#include "network/peers/peer_monitor.h"

namespace jaxring {

class WaitReporter {
 public:
  WaitReporter(PeerMonitor* peers, const Recorder* recorder) : peers_(peers), recorder_(recorder) {}

  // What is known of a process that an operation waits for: "rank 3 (process 1 on b) has not moved for 4.1 s, last seen
  // in ...". `name` is the subject.
  std::string DescribePeer(int process, const std::string& name, uint64_t key) const;
  // What an operation's lanes wait for, and the state of those processes, as sentences. Fills `waited_for` with a rank
  // of each of these processes.
  std::string DescribeWaiting(Operation& op, std::map<int, int>* waited_for) const;
  // Whether all of these processes but the operation's own are alive and in it, too, by their last heartbeats.
  bool AllWaitTogether(const std::map<int, int>& waited_for, const Operation& op) const;
  // The processes that have not begun an operation, by their last heartbeats.
  std::vector<Behind> AllBehind(const Operation& op, Clock::time_point now) const;
  // The failure of an operation whose deadline is over; nothing while it is left to another process to report it.
  std::optional<Status> Late(Operation& op, Clock::time_point now) const;

 private:
  bool WaitsTogether(int process, const Operation& op) const;

  PeerMonitor* const peers_;
  const Recorder* const recorder_;
};

}  // namespace jaxring
