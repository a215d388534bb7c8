// A process with all four ranks of a job fails in every way at every time: each remaining rank gets an error or the
// right sum, and none hangs. Each case is a process of its own, which another one watches.
//
//   in_process_matrix_test [STRIDE [AT_ONCE]]     every STRIDEth case, AT_ONCE at a time; default: all, 8
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "tests/support/forked.h"
#include "tests/support/job.h"

namespace jaxring::test {
namespace {

constexpr int kRanks = 4;
constexpr uint64_t kBlock = 3000;  // operands of several pages
constexpr double kPatience = 0.3;  // seconds, if a rank will be late

enum class What { kKilled, kStopped, kExits, kRaises, kAbsent, kNoMemory, kFullDisk };
enum class When { kFirst, kInside, kIdle, kFinalising };

struct Case {
  What what;
  When when;
  std::string schedule;
  std::string Describe() const {
    constexpr const char* whats[] = {"killed",           "stopped",   "exits",      "raises",
                                     "a rank is absent", "no memory", "a full disk"};
    constexpr const char* whens[] = {"first operation", "inside", "idle", "finalising"};
    return schedule + ", " + whats[static_cast<int>(what)] + ", " + whens[static_cast<int>(when)];
  }
};

// The end of an operand: a thread that reads it waits, in the middle of the operation, until it is released.
struct HeldPage {
  char* begin = nullptr;
  size_t size = 0;
  std::atomic<bool> reached{false}, released{false};
};
HeldPage held;

void WaitThere(int, siginfo_t* info, void*) {
  const auto* at = static_cast<const char*>(info->si_addr);
  if (at < held.begin || at >= held.begin + held.size) _exit(99);
  held.reached = true;
  while (!held.released) usleep(300);
  mprotect(held.begin, held.size, PROT_READ | PROT_WRITE);
}

class Process {
 public:
  explicit Process(const Case& c) : case_(c), schedule_(Find(c.schedule)), job_(1, Wire::kShared) {
    const size_t bytes = schedule_.in_blocks * kBlock * sizeof(int32_t);
    for (int rank = 0; rank < kRanks; ++rank) {
      operands_[rank] = static_cast<int32_t*>(SharedPages(bytes));
      std::fill_n(operands_[rank], bytes / sizeof(int32_t), rank + 1);
      results_[rank].resize(schedule_.out_blocks * kBlock);
    }
    const size_t page = getpagesize();
    held.begin = reinterpret_cast<char*>(operands_[1]) + (bytes - 1) / page * page;
    held.size = page;
  }

  int Run() {
    const bool late = case_.what == What::kAbsent || case_.what == What::kStopped;
    Settings settings = Sized(late ? kPatience : 60);
    if (case_.what == What::kNoMemory) settings.block = 50;  // fits a slot whole: tiles do not cut it
    Call good(&job_, schedule_, Sized(60)), tried(&job_, schedule_, settings, settings.timeout_s);
    if (case_.what == What::kNoMemory) {
      job_.Answer(tried.site(0)->spec().specs[0], [this, settings](int, const PlanRequest& request) {
        auto plan = MakePlan(schedule_, settings, 0, job_.channels());
        plan->shape.tile_elements = uint64_t{1} << 50;  // scratch larger than the address space
        request.Resolve(std::move(plan));
      });
    }
    if (case_.when == When::kIdle || case_.when == When::kFinalising) {
      if (!Right(good)) return 1;
    }
    if (case_.when == When::kFinalising) job_.engine(0).Abort("this process is ending", 2, true);
    const bool ended = case_.when == When::kFinalising || case_.what == What::kRaises;
    const std::vector<Status> statuses = case_.when == When::kInside ? Inside(tried) : Around(tried);
    for (const Status& status : statuses) {
      if (!Fits(status)) return ReportProblem(status);
      if (status.code != statuses[0].code) return ReportProblem(status);
    }
    for (int again = 0; again < 2; ++again) {
      if (ended ? !Ended(Execute(good)) : !Right(good)) return 1;
    }
    return 0;
  }

 private:
  Settings Sized(double timeout_s) const {
    Settings settings;
    settings.block = kBlock;
    settings.protocol = schedule_.messages() ? Protocol::kSimple : Protocol::kMemory;
    settings.timeout_s = timeout_s;
    return settings;
  }

  // The fault happens while all ranks but one wait for that one, which arrives afterwards, if at all.
  std::vector<Status> Around(Call& call) {
    Ends ends(case_.Describe());
    const int64_t run = run_++;
    for (int rank = 0; rank < kRanks - 1; ++rank) Arrive(call, rank, run, ends);
    Act();
    if (case_.what != What::kAbsent) Arrive(call, kRanks - 1, run, ends);
    return Checked(ends);
  }
  // The fault happens while the operation has done a part of its work.
  std::vector<Status> Inside(Call& call) {
    CHECK(mprotect(held.begin, held.size, PROT_NONE) == 0);
    struct sigaction action{};
    action.sa_sigaction = WaitThere;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGSEGV, &action, nullptr) == 0 && sigaction(SIGBUS, &action, nullptr) == 0);
    std::thread other([this] {
      Until([] { return held.reached.load(); });
      Act();
      held.released = true;
    });
    std::vector<Status> statuses = Execute(call);
    other.join();
    return statuses;
  }
  void Act() {
    switch (case_.what) {
      case What::kKilled:
        raise(SIGKILL);
        break;
      case What::kStopped:
        kill(getpid(), SIGSTOP);
        break;
      case What::kExits:
        exit(0);
      case What::kRaises:
        job_.engine(0).Abort("this process is ending after an uncaught ValueError: why", 0.2, false);
        break;
      case What::kFullDisk: {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit none{0, 0};
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
        break;
      }
      case What::kAbsent:
      case What::kNoMemory:
        break;
    }
  }

  bool Fits(const Status& status) const {
    const auto says = [&](const char* text) { return status.message.find(text) != std::string::npos; };
    if (case_.when == When::kFinalising) return !status.ok() && says("this process is ending");
    switch (case_.what) {
      case What::kRaises:
        // A rank that needs no other any more may end first.
        return (status.ok() && case_.when == When::kInside) || says("an uncaught ValueError: why");
      case What::kAbsent:
        return status.code == Code::kDeadlineExceeded && says("only ranks 0, 1, 2 of this process came");
      case What::kNoMemory:
        return status.code == Code::kResourceExhausted && says(" of scratch");
      case What::kStopped:
        return status.ok() || status.code == Code::kDeadlineExceeded;
      default:
        return status.ok();
    }
  }

  std::vector<Status> Execute(Call& call) {
    Ends ends(case_.Describe());
    const int64_t run = run_++;
    for (int rank = 0; rank < kRanks; ++rank) Arrive(call, rank, run, ends);
    return Checked(ends);
  }
  // The statuses of the ranks, from 0 on.
  std::vector<Status> Checked(Ends& ends) const {
    std::vector<Status> statuses = ends.Wait();
    for (size_t rank = 0; rank < statuses.size(); ++rank) {
      const std::vector<int32_t>& result = results_[rank];
      constexpr int kSum = kRanks * (kRanks + 1) / 2;
      if (statuses[rank].ok() && std::any_of(result.begin(), result.end(), [](int32_t v) { return v != kSum; })) {
        statuses[rank] = Status::Error(Code::kInternal, "a wrong sum");
      }
    }
    return statuses;
  }
  void Arrive(Call& call, int rank, int64_t run, Ends& ends) {
    std::fill(results_[rank].begin(), results_[rank].end(), -1);
    call.Arrive(rank, run, operands_[rank], results_[rank].data(), ends.Expect());
  }
  bool Right(Call& call) {
    for (const Status& status : Execute(call)) {
      if (!status.ok()) return ReportProblem(status) == 0;
    }
    return true;
  }
  bool Ended(const std::vector<Status>& statuses) const {
    for (const Status& status : statuses) {
      if (status.ok() || status.message.find("this process is ending") == std::string::npos) {
        return ReportProblem(status) == 0;
      }
    }
    return true;
  }
  int ReportProblem(const Status& status) const {
    std::cerr << case_.Describe() << ": not as it should be: '" << status.message << "'" << std::endl;
    return 1;
  }

  const Case& case_;
  const Schedule& schedule_;
  Job job_;
  std::array<int32_t*, kRanks> operands_;
  std::array<std::vector<int32_t>, kRanks> results_;
  int64_t run_ = 0;
};

// Forks the process, checks how it ends, and continues it if it has stopped.
int RunCase(const Case& c) {
  alarm(90);
  const pid_t process = fork();
  CHECK(process >= 0);
  if (process == 0) {
    alarm(80);
    exit(Process(c).Run());
  }
  int status;
  while (true) {
    CHECK(waitpid(process, &status, WUNTRACED) == process);
    if (!WIFSTOPPED(status)) break;
    usleep(static_cast<useconds_t>(2e6 * kPatience));
    CHECK(kill(process, SIGCONT) == 0);
  }
  const bool well = c.what == What::kKilled ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                            : WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!well) std::cerr << c.Describe() << ": ends with status " << status << std::endl;
  return well ? 0 : 1;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* algorithm : {"ring", "tree", "direct", "halving_doubling"}) {
    const std::string schedule = std::string("all_reduce ") + algorithm + " 1x4 x1";
    for (When when : {When::kFirst, When::kInside, When::kIdle, When::kFinalising}) {
      for (What what : {What::kKilled, What::kStopped, What::kExits, What::kRaises, What::kFullDisk}) {
        cases.push_back({what, when, schedule});
      }
      // Ranks of one process begin together, and with all memory that they need: none of these can happen inside.
      if (when == When::kInside) continue;
      cases.push_back({What::kAbsent, when, schedule});
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
      continue;  // the allocators of sanitizers end the process instead
#endif
      const auto& tables = Find(schedule).tables;
      const bool staged = std::any_of(tables.begin(), tables.end(), Stages);
      if (staged && when != When::kFinalising) cases.push_back({What::kNoMemory, when, schedule});
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
