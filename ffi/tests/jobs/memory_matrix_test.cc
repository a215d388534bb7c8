// One process of four cannot allocate memory or disk space, at every time: the errors of all name that process and the
// allocation, or the operation succeeds if it needs none; and the job goes on.
//
//   memory_matrix_test [STRIDE [AT_ONCE [WORDS]]]     every STRIDEth case that WORDS describe, AT_ONCE at a time;
//                                                     default: all, 8
//
// With JAXRING_TEST_VERBS set (ffi/tests/support/verbs_wire.h) they are the cases of RDMA.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "tests/support/forked.h"
#include "tests/support/forked_call.h"
#include "tests/support/verbs_wire.h"

namespace jaxring::test {
namespace {

constexpr int kProcesses = 4;
constexpr uint64_t kBlock = 50;  // fits a slot whole

enum class What { kStaging, kSharedMemory };
enum class When { kFirst, kInside, kIdle, kFinalising };

struct Case {
  What what;
  When when;
  Wire wire;
  std::string schedule;
  int victim;
  std::string Describe() const {
    constexpr const char* whens[] = {"first operation", "inside", "idle", "finalising"};
    return schedule + ", process " + std::to_string(victim) + " has " +
           (what == What::kStaging ? "no memory" : "a full disk") + ", " + whens[static_cast<int>(when)] +
           (wire == Wire::kShared ? ", shared memory" : ", network");
  }
};

struct SharedState {
  std::atomic<bool> inside[kProcesses], done[kProcesses], limited;
};

// Like a full /dev/shm: files can neither grow nor be made.
void NoSpace() {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit none{4096, 4096};
  CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
}

// Limits this process to the memory that it has mapped now.
void NoMoreAddresses() {
  uint64_t pages;
  CHECK(std::ifstream("/proc/self/statm") >> pages);
  const rlimit none{pages * getpagesize(), RLIM_INFINITY};
  CHECK(setrlimit(RLIMIT_AS, &none) == 0);
}

class Member {
 public:
  Member(const Case& c, int process, SharedState* shared, ForkedJob* job)
      : case_(c),
        process_(process),
        victim_(process == c.victim),
        shared_(shared),
        job_(job),
        schedule_(Find(c.schedule)) {}

  int Run() {
    ProcessEngine engine(EngineOptions{2, 256, 20, 20});
    engine_ = &engine;
    job_->Begin(process_, engine);
    job_->Link(process_, engine, case_.wire);
    std::thread planner = Answering(&engine, process_, [this](int, const PlanRequest& request) { Plan(request); });
    const int failures = Play();
    shared_->done[process_] = true;
    Until([this] {
      for (int p = 0; p < kProcesses; ++p) {
        if (!shared_->done[p] && !(case_.when == When::kFinalising && p == case_.victim)) return false;
      }
      return true;
    });
    _exit(failures == 0 ? 0 : 1);  // without destructors: threads still wait
  }

 private:
  int Play() {
    ForkedCall good(engine_, schedule_, process_, kBlock, "good");
    ForkedCall wanting(engine_, schedule_, process_, kBlock, "wanting");
    switch (case_.when) {
      case When::kFirst:
        break;
      case When::kIdle:
        if (Wrong(good.Run())) return 1;
        break;
      case When::kInside:
        // The victim arrives when all others have begun, or in time if only disk space is missing.
        if (case_.what == What::kSharedMemory) return Fills(good);
        break;
      case When::kFinalising:
        return Ends(good);
    }
    std::thread watch;
    if (case_.when == When::kInside && !victim_) watch = std::thread([this] { Watch(); });
    if (case_.when == When::kInside && victim_) Until([this] { return OthersInside(); });
    const Status status = wanting.Run();
    if (watch.joinable()) watch.join();
    const std::string name = (case_.what == What::kStaging ? "rank " : "process ") + std::to_string(case_.victim);
    const std::string what = case_.what == What::kStaging ? " of scratch" : "shared memory";
    if (status.code != Code::kResourceExhausted || status.message.find(name) == std::string::npos ||
        status.message.find(what) == std::string::npos) {
      return ReportProblem("the error tells of " + name + " and " + what, status);
    }
    for (int again = 0; again < 2; ++again) {
      if (Wrong(good.Run())) return 1;
    }
    return 0;
  }

  // A disk that fills up inside an operation does not affect it.
  int Fills(ForkedCall& good) {
    std::thread watch([this] {
      Watch();
      if (!victim_) return;
      NoSpace();
      shared_->limited = true;
    });
    // The operation cannot end without this process.
    if (process_ == (case_.victim + 1) % kProcesses) Until([this] { return shared_->limited.load(); });
    const Status status = good.Run();
    watch.join();
    return Wrong(status) || Wrong(good.Run()) ? 1 : 0;
  }

  // A process without any memory can still send its goodbye.
  int Ends(ForkedCall& good) {
    if (Wrong(good.Run())) return 1;
    if (victim_) {
      case_.what == What::kStaging ? NoMoreAddresses() : NoSpace();
      engine_->Abort("this process is ending after an uncaught MemoryError: why", 2, false);
      _exit(0);
    }
    const std::string name = "rank " + std::to_string(case_.victim) + " (process " + std::to_string(case_.victim) + ")";
    const Status status = good.Run();
    return !status.ok() && status.message.find(name) != std::string::npos ? 0
                                                                          : ReportProblem("it names " + name, status);
  }

  void Plan(const PlanRequest& request) {
    const bool wanting = request.spec() == "wanting";
    Settings settings;
    settings.block = kBlock;
    settings.protocol = Protocol::kSimple;
    settings.timeout_s = 60;
    settings.key = wanting ? 5 : 6;
    if (wanting && victim_ && case_.what == What::kSharedMemory) {
      // As Python's planner where a link cannot be made.
      request.Identify(settings.key, Half::kBoth, process_);
      rlimit before;
      CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
      signal(SIGXFSZ, SIG_IGN);
      const rlimit none{4096, before.rlim_max};
      CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
      try {
        LinkMemory::Shared(256);
        Fail(__FILE__, __LINE__, "there is no space");
      } catch (const std::bad_alloc& error) {
        request.Reject(Status::Error(Code::kResourceExhausted,
                                     "process " + std::to_string(process_) + " has no memory: " + error.what()));
      }
      CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
      return;
    }
    auto plan = MakePlan(schedule_, settings, process_, 1);
    // Scratch larger than the address space.
    if (wanting && victim_) plan->shape.tile_elements = uint64_t{1} << 50;
    request.Resolve(plan);
  }

  void Watch() {
    while (engine_->counters().operations == 0) std::this_thread::yield();
    shared_->inside[process_] = true;
  }
  bool OthersInside() const {
    for (int p = 0; p < kProcesses; ++p) {
      if (p != process_ && !shared_->inside[p]) return false;
    }
    return true;
  }
  bool Wrong(const Status& status) const { return !status.ok() && ReportProblem("the sum is right", status) != 0; }
  int ReportProblem(const std::string& expected, const Status& status) const {
    std::cerr << case_.Describe() << ": process " << process_ << ": not so: " << expected << ": '" << status.message
              << "'" << std::endl;
    return 1;
  }

  const Case& case_;
  const int process_;
  const bool victim_;
  SharedState* shared_;
  ForkedJob* job_;
  const Schedule& schedule_;
  ProcessEngine* engine_ = nullptr;
};

// Runs in a process of its own.
int RunCase(const Case& c) {
  auto* shared = new (SharedPages(sizeof(SharedState))) SharedState{};
  ForkedJob job(kProcesses);
  const auto members = ForkMembers(job, [&](int p) -> int { _exit(Member(c, p, shared, &job).Run()); });
  int failures = 0;
  for (int p = 0; p < kProcesses; ++p) {
    const bool well = EndedWell(members[p], c.Describe() + ": process " + std::to_string(p));
    // Any thread of a process without memory may end it before it has reported that. The others' errors still name it.
    const bool bereft = p == c.victim && c.what == What::kStaging && c.when == When::kFinalising;
    failures += well || bereft ? 0 : 1;
  }
  return failures == 0 ? 0 : 1;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (Wire wire : {Wire::kShared, Wire::kTcp}) {
    if (wire == Wire::kShared && !VerbsDevices().empty()) continue;
    for (const char* algorithm : {"ring", "tree", "direct", "halving_doubling"}) {
      const std::string schedule = std::string("all_reduce ") + algorithm + " 4x1 x1";
      for (When when : {When::kFirst, When::kInside, When::kIdle, When::kFinalising}) {
        for (What what : {What::kStaging, What::kSharedMemory}) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
          if (what == What::kStaging) continue;  // the allocators of sanitizers end the process instead
#endif
          int victim = static_cast<int>(cases.size()) % kProcesses;
          if (what == What::kStaging && when != When::kFinalising) {
            const auto& tables = Find(schedule).tables;
            if (std::none_of(tables.begin(), tables.end(), Stages)) continue;
            while (!Stages(tables[victim])) victim = (victim + 1) % kProcesses;
          }
          cases.push_back({what, when, wire, schedule, victim});
        }
      }
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
  return RunCases(argc, argv, Cases(), RunCase, 1, 8);
}
