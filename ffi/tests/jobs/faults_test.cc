// Under any faults of its connections a collective ends with the right result or an error: it never gives a wrong
// number and never hangs. Each run is a job of a few processes whose collectives, wires and faults follow from a seed.
//
//   faults_test [FIRST_SEED [COUNT]]     default: the seeds that once found something, and 200 more
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>

#include "base/crc32c.h"
#include "tests/support/forked.h"
#include "tests/support/values.h"

namespace jaxring::test {
namespace {

constexpr int kAtOnce = 10;
constexpr uint32_t kSlotBytes = 4096;
constexpr double kTimeout = 0.8;
// Seeds that found a bug of jaxring. They are only meaningful as long as Scenario's choices stay the same.
const std::vector<uint64_t> kKept = {};

struct Choices {
  explicit Choices(uint64_t seed) : seed_(seed) {}
  uint64_t Below(uint64_t limit) { return Random(seed_ * 0x10001 + ++count_) % limit; }
  template <class T>
  const T& Of(const std::vector<T>& items) {
    return items[Below(items.size())];
  }
  uint64_t seed_, count_ = 0;
};

struct Scenario {
  struct Operation {
    const Schedule* schedule;
    Settings settings;
  };
  uint64_t seed;
  Wire wire;
  int processes = 0, rounds = 1;
  std::vector<Operation> operations;  // of a round, in flight together
  FaultPlan faults;

  explicit Scenario(uint64_t s) : seed(s) {
    Choices choose(seed);
    wire = choose.Below(2) == 0 ? Wire::kShared : Wire::kTcp;
    std::vector<const Schedule*> all;
    for (const auto& list : ScheduleLists()) {
      for (const Schedule& schedule : list) {
        if (schedule.half == Half::kBoth && schedule.processes() > 1 && schedule.processes() <= 5)
          all.push_back(&schedule);
      }
    }
    const Schedule* first = choose.Of(all);
    processes = first->processes();
    std::erase_if(all, [&](const Schedule* s) { return s->placement != first->placement; });
    rounds = 1 + static_cast<int>(choose.Below(4));
    const uint64_t count = 1 + choose.Below(3);
    const std::vector<DType> dtypes = {DType::kInt32, DType::kUInt8, DType::kF32, DType::kBF16};
    for (uint64_t i = 0; i < count; ++i) {
      Settings settings;
      settings.dtype = choose.Of(dtypes);
      settings.op = choose.Below(4) == 0 ? ReduceOp::kMax : ReduceOp::kSum;
      settings.block = choose.Below(6) == 0 ? choose.Below(8) : choose.Below(900);
      settings.protocol = choose.Below(2) == 0 ? Protocol::kLL : Protocol::kSimple;
      settings.tile = 4 + choose.Below(45);
      settings.timeout_s = kTimeout;
      settings.key = 100 + i;
      operations.push_back({i == 0 ? first : choose.Of(all), settings});
    }
    faults.seed = seed;
    faults.delay_us = 200 + static_cast<double>(choose.Below(5000));
    double* const shares[] = {&faults.drop,    &faults.delay,   &faults.duplicate, &faults.truncate,
                              &faults.corrupt, &faults.reorder, &faults.reset};
    const double rates[] = {0.001, 0.005, 0.02, 0.1};
    if (choose.Below(4) == 0) {
      for (double* share : shares) *share = rates[choose.Below(3)];
    } else {
      *shares[choose.Below(std::size(shares))] = rates[choose.Below(4)];
    }
  }
  std::string Describe() const {
    std::string text = "seed " + std::to_string(seed) + (wire == Wire::kShared ? ", shared memory" : ", sockets");
    for (const Operation& op : operations) text += ", " + op.schedule->name;
    return text;
  }
};

struct Tally {
  std::atomic<int> ended, right, errors;
  std::atomic<uint64_t> injected;
};

// One process of a job.
class Member {
 public:
  Member(const Scenario& scenario, int process, ForkedJob* job, Tally* tally)
      : scenario_(scenario), process_(process), job_(job), tally_(tally) {}

  void Run() {
    EngineOptions options{2, kSlotBytes, 20, 20};
    options.faults = scenario_.faults;
    options.faults.seed += static_cast<uint64_t>(process_) << 32;
    options.checksums = true;
    engine_ = std::make_unique<ProcessEngine>(options);
    job_->Begin(process_, *engine_);
    job_->Link(process_, *engine_, scenario_.wire);
    std::thread planner([this] { Plan(); });
    for (size_t i = 0; i < scenario_.operations.size(); ++i) {
      const int n = scenario_.operations[i].schedule->ranks();
      SiteSpec spec{{std::to_string(i)}, {}, n, 30, {0}};
      for (int rank = 0; rank < n; ++rank) spec.groups.push_back(rank);
      sites_.push_back(Site::Make(engine_.get(), spec));
    }
    // A process that has failed begins nothing more: the lost messages may be missing in later calls, too.
    for (int round = 0; round < scenario_.rounds && Round(round); ++round) {
    }
    // If this process ended before the others, they would fail.
    ++tally_->ended;
    Until([&] { return tally_->ended >= scenario_.processes; });
    tally_->injected += Faults::injected();
    engine_->Abort("this process is ending", 2, true);
    stop_ = true;
    planner.join();
  }

 private:
  void Plan() {
    PlanRequest request;
    while (!stop_) {
      if (!engine_->NextRequest(0.02, &request)) continue;
      const Scenario::Operation& op = scenario_.operations[std::stoul(request.spec())];
      request.Resolve(MakePlan(*op.schedule, op.settings, process_, 1));
      request = {};
    }
  }

  struct InFlight {
    std::vector<Buffer> inputs, outputs;
    std::optional<Ends> ends;
  };

  bool Round(int round) {
    Choices choose(scenario_.seed * 64 + static_cast<uint64_t>(round * 8 + process_));
    std::vector<size_t> order;
    for (size_t i = 0; i < sites_.size(); ++i) order.insert(order.begin() + choose.Below(i + 1), i);
    std::vector<InFlight> flights(sites_.size());
    for (size_t i : order) {
      const auto& [schedule, settings] = scenario_.operations[i];
      InFlight& flight = flights[i];
      flight.ends.emplace(scenario_.Describe());
      const uint64_t block = settings.block * ElementBytes(settings.dtype);
      const uint64_t in = schedule->in_blocks * block, out = schedule->out_blocks * block;
      for (int rank = 0; rank < schedule->ranks(); ++rank) {
        flight.inputs.push_back(Input(settings, schedule->in_blocks, rank, scenario_.seed + round + i));
        flight.outputs.emplace_back(out);
      }
      for (int rank = 0; rank < schedule->ranks(); ++rank) {
        if (schedule->placement[rank] != process_) continue;
        Arrival arrival{rank, rank, round, {}, in, out};
        arrival.participant.in = flight.inputs[rank].data();
        arrival.participant.out = flight.outputs[rank].data();
        arrival.participant.done = flight.ends->Expect();
        sites_[i]->Arrive(std::move(arrival));
      }
    }
    bool good = true;
    for (size_t i = 0; i < flights.size(); ++i) {
      const auto& [schedule, settings] = scenario_.operations[i];
      const std::vector<Status> ends = flights[i].ends->Wait();
      const bool right = std::all_of(ends.begin(), ends.end(), [](const Status& status) { return status.ok(); });
      for (const Status& status : ends) {
        if (!status.ok() && std::getenv("FAULTS_SAY") != nullptr) std::cout << status.message + "\n" << std::flush;
      }
      ++(right ? tally_->right : tally_->errors);
      good &= right;
      if (!right) continue;
      const Reference reference(scenario_.Describe(), *schedule, settings, flights[i].inputs);
      for (int rank = 0; rank < schedule->ranks(); ++rank) {
        if (schedule->placement[rank] == process_) reference.Check(rank, flights[i].outputs[rank]);
      }
    }
    return good;
  }

  const Scenario& scenario_;
  const int process_;
  ForkedJob* job_;
  Tally* tally_;
  std::unique_ptr<ProcessEngine> engine_;
  std::atomic<bool> stop_{false};
  std::vector<std::shared_ptr<Site>> sites_;
};

// Runs in a process of its own: forks the members and checks their exit statuses. Returns 0 if all are right.
int RunSeed(uint64_t seed, Tally* total) {
  alarm(120);
  const Scenario scenario(seed);
  auto* tally = new (SharedPages(sizeof(Tally))) Tally{};
  ForkedJob job(scenario.processes);
  std::vector<pid_t> members;
  for (int p = 0; p < scenario.processes; ++p) {
    members.push_back(fork());
    CHECK(members.back() >= 0);
    if (members.back() != 0) continue;
    job.Keep(p);
    alarm(60);
    Member(scenario, p, &job, tally).Run();
    _exit(0);  // without destructors: threads still wait
  }
  job.Keep(-1);
  bool good = true;
  for (size_t i = 0; i < members.size(); ++i) {
    int status;
    CHECK(wait(&status) > 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    good = false;
    tally->ended = scenario.processes;  // the others need not wait for it
    if (!WIFSIGNALED(status)) continue;
    std::cerr << scenario.Describe() << ": a process " << (WTERMSIG(status) == SIGALRM ? "hangs" : "crashes")
              << " (signal " << WTERMSIG(status) << ")" << std::endl;
  }
  ++total->ended;
  ++(tally->errors > 0 ? total->errors : total->right);
  total->injected += tally->injected;
  return good ? 0 : 1;
}

void CrcIsCastagnolis() {
  CHECK_EQ(Crc32c("123456789", 9), 0xE3069283u);
  CHECK_EQ(Crc32c("456789", 6, Crc32c("123", 3)), 0xE3069283u);
  std::string bytes;
  for (int i = 0; i < 300; ++i) bytes += static_cast<char>(Random(i));
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; begin + size <= bytes.size(); ++size) {
      CHECK_EQ(Crc32c(&bytes[begin], size), Crc32cByTable(&bytes[begin], size));
    }
  }
}

// The error about a damaged payload names ranks, operation and message; without checksums it would go unnoticed.
void ChecksumTells() {
  Choices choose(1);
  std::set<std::string> seen;
  for (uint64_t seed = 1; seen.size() < 2; ++seed) {
    CHECK(seed < 100);
    for (bool checksums : {true, false}) {
      EngineOptions options{2, 256, 20, 20};
      options.faults.corrupt = 0.5;
      options.faults.seed = seed;
      options.checksums = checksums;
      Job job(2, Wire::kShared, options, 1);
      const Schedule& schedule = Find("all_reduce ring 2x1 x1");
      Settings settings;
      settings.block = 96;
      settings.protocol = Protocol::kSimple;
      settings.timeout_s = 0.3;
      Call call(&job, schedule, settings);
      auto inputs = Inputs(call, 1);
      auto outputs = Outputs(call);
      Ends ends;
      for (int rank = 0; rank < 2; ++rank)
        call.Arrive(rank, 1, inputs[rank].data(), outputs[rank].data(), ends.Expect());
      for (const Status& status : ends.Wait()) {
        // Faults also hit the control connection, which is not tested here.
        if (status.code != Code::kDataLoss || status.message.find(" lost rank ") != std::string::npos) continue;
        CHECK(checksums);
        CHECK(status.message.find("test all_reduce ring 2x1 x1, execution 0: a message arrived damaged: number ") == 0);
        const bool up = status.message.find("bytes from rank 0 (process 0) to rank 1 (process 1), has checksum") !=
                        std::string::npos;
        const bool down = status.message.find("bytes from rank 1 (process 1) to rank 0 (process 0), has checksum") !=
                          std::string::npos;
        CHECK(up || down);
        seen.insert(up ? "up" : "down");
      }
    }
  }
}

}  // namespace
}  // namespace jaxring::test

// Not the registry's (tests/support/cases.h): its arguments are seeds, each of which is a job of its own.
int main(int argc, char** argv) {
  using namespace jaxring::test;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr uint64_t kRuns = 60;
#else
  constexpr uint64_t kRuns = 200;
#endif
  std::vector<uint64_t> seeds;
  const uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000;
  const uint64_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : argc > 1 ? 1 : kRuns;
  if (argc <= 1) seeds = kKept;
  for (uint64_t i = 0; i < count; ++i) seeds.push_back(first + i);
  ScheduleLists();  // read once for all that are forked
  auto* total = new (SharedPages(sizeof(Tally))) Tally{};
  int running = 0, failures = 0;
  auto reap = [&] {
    int status;
    CHECK(wait(&status) > 0);
    --running;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failures;
  };
  auto say = [&] {
    std::cout << total->ended << " runs: " << total->right << " with right answers only, " << total->errors
              << " with errors, " << failures << " failed; " << total->injected << " faults" << std::endl;
  };
  for (size_t i = 0; i < seeds.size(); ++i) {
    if (running == kAtOnce) reap();
    if (i % 1000 == 999) say();
    const pid_t runner = fork();
    CHECK(runner >= 0);
    if (runner == 0) _exit(RunSeed(seeds[i], total));
    ++running;
  }
  while (running > 0) reap();
  say();
  if (argc <= 1) {
    CrcIsCastagnolis();
    ChecksumTells();
    // Both outcomes must occur; otherwise there are too many faults or too few.
    CHECK(total->right > 10 && total->errors > 10 && total->injected > 100);
  }
  return failures == 0 ? 0 : 1;
}
