// Processes fail in every way at every time: all others get an error that names the right process, and none hangs. Each
// case is a job of four real processes without JAX. Many run at once, because they mostly wait.
//
//   failure_matrix_test [STRIDE [AT_ONCE]]     every STRIDEth case, AT_ONCE at a time; default: all, 16
//
// With JAXRING_TEST_VERBS set (ffi/tests/support/verbs_wire.h) they are the cases of RDMA.
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/support/forked.h"
#include "tests/support/forked_call.h"
#include "tests/support/verbs_wire.h"

namespace jaxring::test {
namespace {

constexpr int kProcesses = 4;
constexpr int kRounds = 12;
constexpr uint64_t kBlock = 700;
// Seconds for an operation with a stopped process. The RDMA cases run on emulated CPUs.
const double kPatience = VerbsDevices().empty() ? 1 : 4;

enum class What { kKilled, kStopped, kExits, kRaises, kCut, kNoMemory };
enum class When { kJoining, kFirst, kInside, kIdle, kFinalising };

struct Case {
  What what;
  When when;
  Wire wire;
  int victim;
  std::string schedule;
  std::string Describe() const {
    constexpr const char* whats[] = {"killed", "stopped", "exits", "raises", "cut", "no memory"};
    constexpr const char* whens[] = {"joining", "first operation", "inside", "idle", "finalising"};
    return schedule + ", process " + std::to_string(victim) + " " + whats[static_cast<int>(what)] + ", " +
           whens[static_cast<int>(when)] + (wire == Wire::kShared ? ", shared memory" : ", network");
  }
};

// The memory that the processes of a job share, made before they are forked.
struct SharedState {
  struct Process {
    std::atomic<bool> first_done, acted;
    std::atomic<int> told;                         // the number of its errors so far
    std::array<std::atomic<bool>, kRounds> named;  // whether each named the victim, set before it is counted
  };
  std::array<Process, kProcesses> processes;
};

// One process of a job.
class Member {
 public:
  Member(const Case& c, int process, SharedState* shared, ForkedJob* job)
      : case_(c), process_(process), shared_(shared), job_(job), schedule_(Find(c.schedule)) {}

  int Run() {
    SharedState::Process& own = shared_->processes[process_];
    const bool victim = process_ == case_.victim;
    const bool without_victim = case_.when == When::kJoining && case_.what != What::kCut;
    engine_ = std::make_unique<ProcessEngine>(EngineOptions{2, 256, 20, 20});
    job_->Begin(process_, *engine_);
    if (victim && case_.when == When::kJoining) Act();
    job_->Link(process_, *engine_, case_.wire, without_victim ? case_.victim : -1);
    planner_ = Answering(engine_.get(), process_, [this](int process, const PlanRequest& request) {
      Settings settings;
      settings.block = kBlock;
      settings.protocol = Protocol::kSimple;
      settings.timeout_s = case_.what == What::kStopped ? kPatience : 60;
      settings.key = 5;
      request.Resolve(MakePlan(schedule_, settings, process, 1));
    });
    call_ = std::make_unique<ForkedCall>(engine_.get(), schedule_, process_, kBlock);
    // Processes that arrive after the victim are lost in this operation.
    if (case_.when == When::kIdle || case_.when == When::kFinalising) {
      const Status status = call_->Run();
      if (!status.ok()) return ReportProblem("the first operation fails", status);
      own.first_done = true;
      Until([this] { return AllDone(); });
    }
    if (victim) {
      if (case_.when == When::kFinalising) engine_->Abort("this process is ending", 2, true);
      // A victim that is cut off lives on. Inside the operation it fails, too. The last of the others arrives after
      // that, since shared memory would still work.
      if (case_.when == When::kInside) {
        std::thread inside([this] {
          while (engine_->counters().operations == 0) std::this_thread::yield();
          Act();
        });
        const Status status = call_->Run();
        inside.join();
        if (!Failed(status, "lost rank ")) return ReportProblem("the victim is told", status);
      } else if (case_.when != When::kJoining) {
        Act();
      }
      own.acted = true;
      AllTold(2);
      return 0;
    }
    if (case_.when != When::kInside) Until([this] { return shared_->processes[case_.victim].acted.load(); });
    // The operation cannot end without this process, which arrives when the victim can no longer take part.
    if (case_.when == When::kInside && process_ == (case_.victim + 2) % kProcesses) Until([this] { return Lost(); });
    return Survive();
  }

 private:
  // The operation fails, and the next one, too. A stopped process is recognised by its silence, for which a busy
  // machine may mistake others' delays. Then all processes try both again together.
  int Survive() {
    const std::string name = "rank " + std::to_string(case_.victim) + " (process " + std::to_string(case_.victim) + ")";
    // A process that has sent its goodbye is not waited for.
    const bool stopped = case_.what == What::kStopped && case_.when != When::kFinalising;
    Status status;
    for (int round = 0, right = 0; round < (stopped ? kRounds : 2) && right < 2; ++round) {
      status = call_->Run();
      if (status.ok()) return ReportProblem("it fails", status);
      if ((status.code == Code::kDeadlineExceeded) != stopped)
        return ReportProblem("only a stopped one is waited for", status);
      const bool named = NamesVictim(status);
      if (!named) ReportProblem("round " + std::to_string(round) + " names " + name, status);
      shared_->processes[process_].named[round] = named;
      // If this process ended before the others have failed, their errors would name it.
      AllTold(round + 1);
      bool all = true;
      for (int p = 0; p < kProcesses; ++p) all &= p == case_.victim || shared_->processes[p].named[round].load();
      right = all ? right + 1 : 0;
      if (right == 2) return 0;
    }
    return ReportProblem("all name " + name, status);
  }
  bool Lost() {
    if (case_.what == What::kCut) return shared_->processes[case_.victim].acted.load();
    if (case_.what == What::kStopped) return VictimIs("T");
    // A process that raises reports it first. Its engine's threads go on for a moment, in which the operation could
    // end.
    return engine_->network().peers().Crashed(case_.victim) && (case_.what != What::kRaises || VictimIs("ZX"));
  }
  // All of its threads are in one of these states of proc(5), or it is gone. A stop reaches them one after another, and
  // until then its workers could end the operation.
  bool VictimIs(const std::string& states) const {
    const int pid = job_->pid(case_.victim);
    if (pid == 0) return false;  // it has not begun yet, and over sockets nobody waits for that
    std::error_code gone;
    const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(pid) + "/task", gone);
    if (gone) return true;
    for (const auto& task : tasks) {
      std::string stat;
      try {
        std::ifstream file(task.path() / "stat");
        stat.assign(std::istreambuf_iterator<char>(file), {});
      } catch (const std::ios_base::failure&) {
        continue;  // the thread has ended since the file was opened
      }
      const size_t name = stat.rfind(") ");
      if (name != stat.npos && states.find(stat[name + 2]) == states.npos) return false;
    }
    return true;
  }
  bool Failed(const Status& status, const std::string& text) const {
    return !status.ok() && status.message.find(text) != std::string::npos;
  }
  // As the process that is lost, or as the process whose failure is forwarded.
  bool NamesVictim(const Status& status) const {
    const std::string victim = std::to_string(case_.victim);
    return Failed(status, "rank " + victim + " (process " + victim + ")") ||
           Failed(status, "(Process " + victim + " was the first to see it.)");
  }
  int ReportProblem(const std::string& expected, const Status& status) const {
    std::cerr << case_.Describe() << ": process " << process_ << ": not so: " << expected << ": '" << status.message
              << "'" << std::endl;
    return 1;
  }
  void AllTold(int errors) {
    if (process_ != case_.victim) shared_->processes[process_].told = errors;
    Until([&] {
      for (int p = 0; p < kProcesses; ++p) {
        if (p != case_.victim && shared_->processes[p].told < errors) return false;
      }
      return true;
    });
  }
  bool AllDone() const {
    return std::all_of(shared_->processes.begin(), shared_->processes.end(),
                       [](const SharedState::Process& p) { return p.first_done.load(); });
  }

  void Act() {
    if (case_.what != What::kCut) shared_->processes[process_].acted = true;
    switch (case_.what) {
      case What::kKilled:
        raise(SIGKILL);
        break;
      case What::kStopped:
        raise(SIGSTOP);
        break;
      case What::kExits:
        _exit(0);
      case What::kRaises:
        engine_->Abort("this process is ending after an uncaught ValueError: why", 2, false);
        _exit(0);
      case What::kCut:
        // One connection after another: meanwhile this process reports to the remaining peers that the others are gone.
        for (int p = 0; p < kProcesses; ++p) {
          if (p == process_) continue;
          shutdown(job_->control(process_, p), SHUT_RDWR);
          if (case_.wire == Wire::kShared) continue;
          shutdown(job_->sending(process_, p), SHUT_RDWR);
          shutdown(job_->receiving(process_, p), SHUT_RDWR);
        }
        break;
      case What::kNoMemory: {
        // As a full /dev/shm: the memory of a link cannot be made.
        signal(SIGXFSZ, SIG_IGN);
        const rlimit none{4096, 4096};
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
        try {
          LinkMemory::Shared(256);
          Fail(__FILE__, __LINE__, "there is no memory");
        } catch (const std::bad_alloc& error) {
          engine_->Abort(std::string("this process is ending after ") + error.what(), 2, false);
          _exit(0);
        }
      }
    }
  }

  const Case& case_;
  const int process_;
  SharedState* shared_;
  ForkedJob* job_;
  const Schedule& schedule_;
  std::unique_ptr<ProcessEngine> engine_;
  std::unique_ptr<ForkedCall> call_;
  std::thread planner_;
};

// Runs in a process of its own: forks the members and checks their exit statuses.
int RunCase(const Case& c) {
  auto* shared = new (SharedPages(sizeof(SharedState))) SharedState{};
  ForkedJob job(kProcesses);
  // Without destructors, since threads still wait.
  const auto members = ForkMembers(job, [&](int p) -> int { _exit(Member(c, p, shared, &job).Run()); });
  int failures = 0;
  for (int p = 0; p < kProcesses; ++p) {
    if (p != c.victim) failures += EndedWell(members[p], c.Describe() + ": process " + std::to_string(p)) ? 0 : 1;
  }
  // A victim that is cut off ends by itself, with status 0; others do not.
  if (c.what == What::kCut) {
    failures += EndedWell(members[c.victim], c.Describe() + ": the victim") ? 0 : 1;
  } else {
    kill(members[c.victim], SIGKILL);
    CHECK(waitpid(members[c.victim], nullptr, 0) == members[c.victim]);
  }
  return failures == 0 ? 0 : 1;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const std::vector<std::string> schedules = {"all_reduce ring 4x1 x1", "all_reduce tree 4x1 x1",
                                              "all_reduce direct 4x1 x1", "all_reduce halving_doubling 4x1 x1"};
  for (Wire wire : {Wire::kShared, Wire::kTcp}) {
    if (wire == Wire::kShared && !VerbsDevices().empty()) continue;
    for (const std::string& schedule : schedules) {
      for (What what : {What::kKilled, What::kStopped, What::kExits, What::kRaises, What::kCut}) {
        for (When when : {When::kJoining, When::kFirst, When::kInside, When::kIdle, When::kFinalising}) {
          const int index = static_cast<int>(cases.size());
          cases.push_back({what, when, wire, index % kProcesses, schedule});
          if (schedule == schedules[0] && what != What::kStopped) {
            cases.push_back({what, when, wire, (index + 2) % kProcesses, schedule});
          }
        }
      }
      cases.push_back({What::kNoMemory, When::kJoining, wire, static_cast<int>(cases.size()) % kProcesses, schedule});
    }
  }
  return cases;
}

}  // namespace
}  // namespace jaxring::test

// Not the registry's (tests/support/cases.h): its arguments say how many of the cases run, each in a process of its
// own.
int main(int argc, char** argv) {
  using namespace jaxring::test;
  Find("all_reduce ring 4x1 x1");  // reads the schedules once, for all that are forked
  // Under a sanitizer everything takes longer, and races show in a part of the cases.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr size_t kStride = 5;
#else
  constexpr size_t kStride = 1;
#endif
  return RunCases(argc, argv, Cases(), RunCase, kStride, 16);
}
