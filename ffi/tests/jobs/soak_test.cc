// Eight processes run random collectives with random delays while one after another is killed and replaced: no result
// is wrong, none hangs, and survivors keep neither memory nor descriptors of ended processes.
//
//   soak_test [SECONDS [SEED]]     default: 5 seconds
//
// After a death every process destroys its engine and makes a new one with the replacement, which begins an epoch. The
// sockets come from the parent, which lives on, as a launcher does. Epochs take turns: one host, by shared memory;
// eight hosts, by TCP; two hosts of four.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/support/forked.h"
#include "tests/support/open_descriptors.h"
#include "tests/support/tcp_links.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

constexpr int kProcesses = 8, kHalf = 4;
constexpr auto kLimit = std::chrono::seconds(60);

struct Report {
  std::atomic<int> epoch;  // the last epoch that it has left
  std::atomic<uint64_t> operations, rss_kib, descriptors;
};
struct SharedState {
  std::atomic<int> epoch;  // the current one
  std::atomic<bool> over;
  Shown shown[kProcesses];  // by this epoch
  Report processes[kProcesses];
};

// A collective of all eight, or of the four processes of either half.
struct Choice {
  Choice(uint64_t seed, int epoch, uint64_t number, int process) {
    const uint64_t random = Random(seed ^ Random(static_cast<uint64_t>(epoch) << 32 ^ number));
    auto of = [&random, turn = uint64_t{0}](uint64_t limit) mutable { return Random(random + ++turn) % limit; };
    static const std::vector<const Schedule*> all = Among(kProcesses), halves = Among(kHalf);
    const bool whole = of(3) == 0;
    schedule = whole ? all[of(all.size())] : halves[of(halves.size())];
    first = whole ? 0 : process / kHalf * kHalf;
    const DType dtypes[] = {DType::kF32, DType::kInt32, DType::kBF16, DType::kF64};
    settings.dtype = dtypes[of(4)];
    settings.block = of(10) == 0 ? of(20000) : of(700);
    settings.protocol = of(2) == 0 ? Protocol::kLL : Protocol::kSimple;
    settings.tile = 16 + of(200);
    settings.timeout_s = 30;
    settings.key = random | 1;
    if (first != 0) settings.key += 2;
    delay_us = of(4) == 0 ? Random(random + static_cast<uint64_t>(process)) % 2000 : 0;
  }
  static std::vector<const Schedule*> Among(int processes) {
    std::vector<const Schedule*> found;
    for (const auto& list : ScheduleLists()) {
      for (const Schedule& schedule : list) {
        const bool fits = schedule.half == Half::kBoth && schedule.ranks() == processes;
        if (fits && schedule.processes() == processes) found.push_back(&schedule);
      }
    }
    CHECK(!found.empty());
    return found;
  }
  const Schedule* schedule;
  int first;
  Settings settings;
  uint64_t delay_us;
};

uint64_t RssKib() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4;
}

uint64_t Descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<uint64_t>(std::distance(begin(all), end(all)));
}

class Member {
 public:
  Member(uint64_t seed, int process, int parent, SharedState* shared)
      : seed_(seed), process_(process), parent_(parent), shared_(shared) {}

  void Run() {
    int epoch;
    while (true) {
      const std::vector<int> descriptors = ReceiveDescriptors(parent_, &epoch, 3 * (kProcesses - 1));
      if (descriptors.empty()) return;
      Epoch(epoch, descriptors);
      Report& own = shared_->processes[process_];
      own.rss_kib = RssKib();
      own.descriptors = Descriptors();
      own.epoch = epoch;
    }
  }

 private:
  void Epoch(int epoch, const std::vector<int>& descriptors) {
    EngineOptions options{1, 4096, 20, 20};
    options.checksums = epoch % 2 == 0;
    auto engine = std::make_unique<ProcessEngine>(options);
    Shown* shown[kProcesses];
    for (int p = 0; p < kProcesses; ++p) shown[p] = &shared_->shown[p];
    shown[process_]->pid = getpid();
    std::vector<int> beside;  // the processes on the same host
    size_t next = 0;
    for (int p = 0; p < kProcesses; ++p) {
      if (p == process_) continue;
      Descriptor sending(descriptors[next]), receiving(descriptors[next + 1]);
      engine->network().AddControl(p, std::make_unique<Stream>(descriptors[next + 2]));
      next += 3;
      if (epoch % 3 == 1 || (epoch % 3 == 2 && p / kHalf == process_ / kHalf)) {
        beside.push_back(p);
        continue;
      }
      LinkByTcp(engine->network(), p, 0, sending.Release(), true);
      LinkByTcp(engine->network(), p, 0, receiving.Release(), false);
    }
    const auto over = [this, epoch] { return shared_->epoch != epoch || shared_->over; };
    const bool linked = LinkShared(process_, *engine, beside, shown, over);
    std::atomic<bool> stop{false};
    std::thread planner([&] { Plan(engine.get(), epoch, &stop); });
    Status status;
    for (uint64_t number = 0; linked && status.ok(); ++number) status = Operate(engine.get(), epoch, number);
    // A failure is allowed only after a death, or at the end.
    CHECK(!linked || status.code == Code::kUnavailable || status.code == Code::kAborted);
    const auto until = std::chrono::steady_clock::now() + kLimit;
    while (!over()) {
      if (std::chrono::steady_clock::now() > until) {
        std::cerr << "process " << process_ << ", though nobody died: " << status.message << std::endl;
        Fail(__FILE__, __LINE__, "nothing fails while all live");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    engine->Abort("this epoch is over", 2, false);
    stop = true;
    engine->python().Close();
    planner.join();
  }

  void Plan(ProcessEngine* engine, int epoch, std::atomic<bool>* stop) {
    PlanRequest request;
    while (!*stop) {
      if (!engine->NextRequest(0.05, &request)) continue;
      const Choice choice(seed_, epoch, std::stoull(request.spec()), process_);
      auto plan = MakePlan(*choice.schedule, choice.settings, process_ - choice.first, 1);
      plan->group.process += choice.first;
      for (RankPlace& rank : plan->group.ranks) {
        rank.process += choice.first;
        rank.device += choice.first;
      }
      request.Resolve(std::move(plan));
      request = {};
    }
  }

  Status Operate(ProcessEngine* engine, int epoch, uint64_t number) {
    const Choice choice(seed_, epoch, number, process_);
    const auto& [schedule, first, settings, delay_us] = choice;
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    const int n = schedule->ranks(), rank = process_ - first;
    SiteSpec spec{{std::to_string(number)}, {}, n, 30, {0}};
    for (int r = 0; r < n; ++r) spec.groups.push_back(r);
    auto site = Site::Make(engine, spec);
    const uint64_t block = settings.block * ElementBytes(settings.dtype);
    std::vector<Buffer> inputs;
    for (int r = 0; r < n; ++r) inputs.push_back(Input(settings, schedule->in_blocks, r, number % 1000));
    Buffer output(schedule->out_blocks * block);
    Ends ends;
    Arrival arrival{rank, rank, 0, {}, schedule->in_blocks * block, output.size()};
    arrival.participant.in = inputs[rank].data();
    arrival.participant.out = output.data();
    arrival.participant.done = ends.Expect();
    site->Arrive(std::move(arrival));
    Status status = ends.Wait()[0];
    if (!status.ok()) return status;
    Reference("epoch " + std::to_string(epoch) + ", operation " + std::to_string(number) + ", " + schedule->name,
              *schedule, settings, inputs)
        .Check(rank, output);
    ++shared_->processes[process_].operations;
    return status;
  }

  const uint64_t seed_;
  const int process_, parent_;
  SharedState* shared_;
};

struct Parent {
  Parent(uint64_t seed_, SharedState* shared_) : seed(seed_), shared(shared_) {}

  void Start(int process) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    shared->processes[process].epoch = shared->epoch.load() - 1;
    pids[process] = fork();
    CHECK(pids[process] >= 0);
    if (pids[process] == 0) {
      for (int p = 0; p < kProcesses; ++p) {
        if (p != process && to[p] >= 0) close(to[p]);
      }
      close(ends[0]);
      Member(seed, process, ends[1], shared).Run();
      _exit(0);
    }
    close(ends[1]);
    if (to[process] >= 0) close(to[process]);
    to[process] = ends[0];
  }

  void Begin() {
    ForkedJob job(kProcesses);
    for (Shown& shown : shared->shown) new (&shown) Shown{};  // all have left what was shown before
    for (int p = 0; p < kProcesses; ++p) {
      std::vector<int> own;
      for (int peer = 0; peer < kProcesses; ++peer) {
        if (peer != p) own.insert(own.end(), {job.sending(p, peer), job.receiving(p, peer), job.control(p, peer)});
      }
      SendDescriptors(to[p], shared->epoch, own);
    }
    job.Keep(-1);
  }

  // Waits until every process but `but` has left the epoch.
  void AwaitLeft(int epoch, int but) {
    const auto until = std::chrono::steady_clock::now() + kLimit;
    for (int p = 0; p < kProcesses; ++p) {
      while (p != but && shared->processes[p].epoch < epoch) {
        int status;
        if (waitpid(pids[p], &status, WNOHANG) != 0) Fail(__FILE__, __LINE__, "a process ends on its own");
        if (std::chrono::steady_clock::now() > until) Fail(__FILE__, __LINE__, "a survivor hangs");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  const uint64_t seed;
  SharedState* const shared;
  pid_t pids[kProcesses]{};
  int to[kProcesses] = {-1, -1, -1, -1, -1, -1, -1, -1};
};

}  // namespace
}  // namespace jaxring::test

// Not the registry's (tests/support/cases.h): its arguments are a time and a seed.
int main(int argc, char** argv) {
  using namespace jaxring::test;
  using Clock = std::chrono::steady_clock;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  ScheduleLists();
  auto* shared = new (SharedPages(sizeof(SharedState))) SharedState{};
  Parent parent(seed, shared);
  shared->epoch = 1;
  for (int p = 0; p < kProcesses; ++p) parent.Start(p);
  const auto start = Clock::now();
  auto elapsed = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<std::pair<uint64_t, uint64_t>> measured;  // process 0's memory and descriptors after each epoch
  double said = 0;
  auto say = [&] {
    uint64_t operations = 0;
    for (const auto& process : shared->processes) operations += process.operations;
    std::cout << static_cast<int>(elapsed()) << " s: " << operations << " collectives, " << measured.size()
              << " restarts, none wrong; process 0: " << measured.back().first << " KiB, " << measured.back().second
              << " descriptors" << std::endl;
  };
  while (elapsed() < seconds || measured.size() < 3) {
    const int epoch = shared->epoch;
    parent.Begin();
    const uint64_t random = Random(seed ^ Random(static_cast<uint64_t>(epoch)));
    std::this_thread::sleep_for(std::chrono::milliseconds(50 + random % 500));
    // Process 0 lives through all of it.
    const int victim = 1 + static_cast<int>(random / 500 % (kProcesses - 1));
    kill(parent.pids[victim], SIGKILL);
    int status;
    CHECK(waitpid(parent.pids[victim], &status, 0) == parent.pids[victim]);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);  // and had not ended before
    shared->epoch = epoch + 1;
    parent.AwaitLeft(epoch, victim);
    measured.push_back({shared->processes[0].rss_kib, shared->processes[0].descriptors});
    parent.Start(victim);
    if (elapsed() - said > 60) {
      said = elapsed();
      say();
    }
  }
  shared->over = true;
  for (int p = 0; p < kProcesses; ++p) {
    close(parent.to[p]);
    int status;
    CHECK(waitpid(parent.pids[p], &status, 0) == parent.pids[p]);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  say();
  for (const auto& [rss, descriptors] : measured) CHECK_EQ(descriptors, measured[0].second);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  // The first third warms allocators up.
  double x = 0, y = 0, xx = 0, xy = 0, count = 0;
  for (size_t i = measured.size() / 3; i < measured.size(); ++i, ++count) {
    const double at = static_cast<double>(i), rss = static_cast<double>(measured[i].first);
    x += at, y += rss, xx += at * at, xy += at * rss;
  }
  const double slope = (count * xy - x * y) / (count * xx - x * x);
  std::cout << "memory grows by " << slope << " KiB in each epoch" << std::endl;
  // A few epochs say nothing beside the noise of some 500 KiB.
  CHECK(count < 100 || slope < 8);
#endif
}
