// A job of real processes that a test forks: its sockets, which exist before the processes, and how these connect.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/process_engine.h"
#include "tests/support/job.h"

namespace jaxring::test {

template <class Condition>
void Until(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(300));
}

// Zero-filled memory that a process shares with those that it forks later. It is never unmapped.
void* SharedPages(size_t bytes);

// What a process of a job publishes in shared memory, so that the others can map its memory. Zero-filled at first.
struct Shown {
  static constexpr int kMost = 8;
  std::atomic<int> pid;
  char offers[kMost][64];  // of its sending ends, by peer
  std::atomic<bool> offered[kMost];
  std::atomic<bool> mapped;
};
// Links a process with `peers` by shared memory, over one channel, and returns when these have done the same. False if
// `over` became true before, since one of them is gone. shown[p] is what process p publishes.
bool LinkShared(int process, ProcessEngine& engine, const std::vector<int>& peers, Shown* const* shown,
                const std::function<bool()>& over);

class ForkedJob {
 public:
  static constexpr int kMost = Shown::kMost;

  explicit ForkedJob(int processes);
  int processes() const { return processes_; }
  // Closes the sockets of all other processes, whose connections would otherwise not end with them. -1: closes all.
  void Keep(int process);
  // Called in a member: starts its engine with the control connections.
  void Begin(int process, ProcessEngine& engine);
  // Links it with all others but `absent`, by one channel; returns when those have done the same. If JAXRING_TEST_VERBS
  // names devices, uses RDMA instead of TCP.
  void Link(int process, ProcessEngine& engine, Wire wire, int absent = -1);
  int pid(int process) const { return offers_[process].shown.pid; }
  // The ends of this process's connections.
  int control(int own, int peer) const { return control_[own][peer]; }
  int sending(int own, int peer) const { return data_[own][peer][0]; }
  int receiving(int own, int peer) const { return data_[peer][own][1]; }

 private:
  struct Offers {
    Shown shown;
    // The offers for its queue pairs with each peer: those that send, those that receive.
    char offers[kMost][2][1024];
    std::atomic<bool> offered;
  };
  void LinkVerbs(int process, ProcessEngine& engine, const std::vector<int>& peers);
  const int processes_;
  Offers* offers_;
  int data_[kMost][kMost][2];  // [from][to]: the sender's end, the receiver's
  int control_[kMost][kMost];  // [own][peer]
};

// Forks a job's members. Each keeps its own sockets, and exits with the status that `run` returns, or inside `run`. A
// member that hangs is killed, and this process later; the exit status then shows it.
std::vector<pid_t> ForkMembers(ForkedJob& job, const std::function<int(int process)>& run);
// Waits for a process and returns whether it exited with 0. Reports on stderr if a signal ended it.
bool EndedWell(pid_t pid, const std::string& what);
// Runs each case in a process of its own, and prints how many passed; returns main's exit status. A program's arguments
// are STRIDE (every STRIDEth case), AT_ONCE (the number of concurrent cases), and WORDS (only cases whose description
// has them); the defaults are given here.
int RunCases(int argc, char** argv, size_t count, const std::function<int(size_t index)>& run, size_t stride,
             int at_once);
template <class Case>
int RunCases(int argc, char** argv, const std::vector<Case>& cases, int (*run)(const Case&), size_t stride,
             int at_once) {
  std::vector<const Case*> wanted;
  for (const Case& c : cases) {
    if (argc <= 3 || c.Describe().find(argv[3]) != std::string::npos) wanted.push_back(&c);
  }
  CHECK(!wanted.empty());
  return RunCases(argc, argv, wanted.size(), [&](size_t i) { return run(*wanted[i]); }, stride, at_once);
}

}  // namespace jaxring::test
