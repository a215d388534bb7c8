// A job of real processes, forked from a test: its sockets, made before them, and how they link themselves.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "tests/support/job.h"

namespace jaxring::test {

template <class Condition>
void Until(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(300));
}

// Zero-filled memory that a process shares with those that it forks later, for good.
void* SharedPages(size_t bytes);

// What a process of a job shows the others, in memory that all share, so that they can map it. Zero-filled at first.
struct Shown {
  static constexpr int kMost = 8;
  std::atomic<int> pid, bell, blocks;
  std::atomic<int> ring[kMost];  // descriptors of its sending rings, plus 1
  std::atomic<bool> mapped;
};
// Links a process with `peers` by shared memory, over one channel, and returns when these have done the same. False
// where `over` ended it before, since one of them is gone. shown[p] is what process p shows.
bool LinkShared(int process, Engine& engine, const std::vector<int>& peers, Shown* const* shown,
                const std::function<bool()>& over);

class ForkedJob {
 public:
  static constexpr int kMost = Shown::kMost;

  explicit ForkedJob(int processes);
  int processes() const { return processes_; }
  // Leaves only what is this process's: another one's end would live on here. -1: nothing is.
  void Keep(int process);
  // In a member: its engine is there, with the connections beside the data.
  void Begin(int process, Engine& engine);
  // Links it with all others but `absent`, by one channel; returns when those have linked themselves, too. Where
  // JAXRING_TEST_VERBS names devices, RDMA takes the place of TCP.
  void Link(int process, Engine& engine, Wire wire, int absent = -1);
  int pid(int process) const { return board_[process].shown.pid; }
  // This process's ends.
  int control(int own, int peer) const { return control_[own][peer]; }
  int sending(int own, int peer) const { return data_[own][peer][0]; }
  int receiving(int own, int peer) const { return data_[peer][own][1]; }

 private:
  struct Board {
    Shown shown;
    // What its queue pairs with each peer are to be told: those that send, those that receive.
    char offers[kMost][2][1024];
    std::atomic<bool> offered;
  };
  void LinkVerbs(int process, Engine& engine, const std::vector<int>& peers);
  const int processes_;
  Board* board_;
  int data_[kMost][kMost][2];  // [from][to]: the sender's end, the receiver's
  int control_[kMost][kMost];  // [own][peer]
};

// Forks a job's members: each keeps what is his, and exits with what `run` returns, or by
// `run` itself. Who hangs is ended, and this process later, which the exit status then tells.
std::vector<pid_t> ForkMembers(ForkedJob& job, const std::function<int(int process)>& run);
// Waits for a process; whether it exited with 0. Says so on stderr if it was ended by a signal.
bool EndedWell(pid_t pid, const std::string& what);
// Runs cases in a process of its own each, and says how many ended well; returns main's exit status. A program's
// arguments are STRIDE (every STRIDEth case) and AT_ONCE (so many side by side); these are what it does without.
int RunCases(int argc, char** argv, size_t count, const std::function<int(size_t index)>& run, size_t stride,
             int at_once);
template <class Case>
int RunCases(int argc, char** argv, const std::vector<Case>& cases, int (*run)(const Case&), size_t stride,
             int at_once) {
  return RunCases(argc, argv, cases.size(), [&](size_t i) { return run(cases[i]); }, stride, at_once);
}

}  // namespace jaxring::test
