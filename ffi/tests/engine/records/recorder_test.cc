// The flight recorder: what it keeps, what it returns, and that threads do not disturb each other.
#include "engine/records/recorder.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/signals/dump_signal.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

using State = OperationState;
using Clock = std::chrono::steady_clock;

Plan Labelled(const std::string& text) {
  Plan plan;
  plan.what = "what " + text;
  plan.record.label = std::make_shared<const std::string>(text);
  return plan;
}

CASE("states") {
  Recorder recorder;
  CHECK(recorder.After(0).empty());
  const Clock::time_point before = Clock::now();
  const uint64_t a = recorder.Begin(Labelled("a"), 70, 7, before, Clock::now()),
                 b = recorder.Begin(Labelled("b"), 71, 0, before, Clock::now());
  recorder.End(b, true);
  recorder.End(0, false);
  std::vector<OperationRecord> records = recorder.After(0);
  CHECK_EQ(records.size(), 2u);
  CHECK(records[0].number == a && records[0].label == "a" && records[0].what == "what a");
  CHECK(records[0].sequence == 7 && records[0].key == 70 && recorder.NumberOf(71) == b && recorder.NumberOf(72) == 0);
  CHECK(records[0].state == State::kRunning && records[0].ended == Clock::time_point());
  CHECK(records[0].arrived == before && before <= records[0].launched);
  CHECK(records[1].number == b && records[1].state == State::kFailed && records[1].ended >= records[1].launched);
  recorder.End(a, false);
  CHECK(recorder.After(0)[0].state == State::kDone);
  CHECK_EQ(recorder.After(a).size(), 1u);
  CHECK(recorder.After(b).empty());
}

CASE("launches, and what a process did before them") {
  Recorder recorder;
  const Clock::time_point begin = Clock::now();
  const uint64_t first = recorder.Begin(Labelled("a"), 70, 1, begin, begin);
  recorder.End(first, false);
  const Clock::time_point later = Clock::now() + std::chrono::milliseconds(5);
  recorder.Begin(Labelled("a"), 70, 2, later, later);  // runs on
  recorder.Begin(Labelled("b"), 71, 1, later, later + std::chrono::milliseconds(1));
  CHECK(!recorder.FindLaunch(70, 3) && !recorder.FindLaunch(72, 1));
  const auto found = recorder.FindLaunch(70, 2);
  CHECK(found && found->second == first + 1 && found->first.launched_ns == Nanoseconds(later));
  // The operation before it ended a little less than 5 ms earlier; nothing had ended before the first one.
  CHECK(found->first.idle_ns > 0 && found->first.idle_ns >= Nanoseconds(std::chrono::milliseconds(5)));
  CHECK_EQ(recorder.FindLaunch(70, 1)->first.idle_ns, -1);
  const std::vector<LaunchTime> last = recorder.LastLaunches(2);
  CHECK(last.size() == 2 && last[0].sequence == 2 && last[1].key == 71);
  CHECK_EQ(last[1].idle_ns, last[0].idle_ns + Nanoseconds(std::chrono::milliseconds(1)));
  CHECK(recorder.At(first)->what == "what a" && !recorder.At(0) && !recorder.At(9));
}

CASE("records are found by their keys until they are overwritten") {
  Recorder recorder;
  const Plan plan = Labelled("a");
  const Clock::time_point now = Clock::now();
  uint64_t last = 0;
  auto begin = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i, ++last) CHECK_EQ(recorder.Begin(plan, last / 2, last % 2, now, now), last + 1);
  };
  auto check = [&](uint64_t number, bool kept) {
    const uint64_t key = (number - 1) / 2, sequence = (number - 1) % 2;
    const auto launch = recorder.FindLaunch(key, sequence);
    CHECK_EQ(launch.has_value(), kept);
    if (!kept) return;
    CHECK(launch->second == number && launch->first.key == key && launch->first.sequence == sequence);
    CHECK_EQ(recorder.NumberOf(key), std::min(last, 2 * key + 2));
  };
  CHECK(recorder.NumberOf(0) == 0 && !recorder.FindLaunch(0, 0));
  // A few at a time, all that fit, and more than fit since the last look.
  for (uint64_t count :
       {uint64_t{1}, uint64_t{2}, uint64_t{61}, Recorder::kCapacity, uint64_t{5}, 2 * Recorder::kCapacity + 7}) {
    begin(count);
    const uint64_t oldest = last > Recorder::kCapacity ? last - Recorder::kCapacity + 1 : 1;
    for (uint64_t number = 1; number <= last; ++number) check(number, number >= oldest);
    CHECK(recorder.NumberOf(last) == 0 && !recorder.FindLaunch(0, 2));
  }
}

CASE("old records are overwritten") {
  Recorder recorder;
  const uint64_t first = recorder.Begin(Labelled("first"), 0, 0, Clock::now(), Clock::now());
  uint64_t last = first;
  const Plan later = Labelled(std::string(500, 'l'));
  for (uint64_t i = 0; i < Recorder::kCapacity; ++i) last = recorder.Begin(later, 1, i, Clock::now(), Clock::now());
  std::vector<OperationRecord> records = recorder.After(0);
  CHECK_EQ(records.size(), Recorder::kCapacity);
  CHECK(records.front().number == first + 1 && records.back().number == last);
  CHECK(records.front().label == *later.record.label && recorder.NumberOf(0) == 0);
  recorder.End(first, false);  // another record has its slot now
  for (const OperationRecord& record : recorder.After(0)) CHECK(record.state == State::kRunning);
}

// Texts have a ring of their own: an overwritten text is not returned.
CASE("old texts are overwritten") {
  Recorder recorder;
  for (uint64_t i = 0; i < 2200; ++i) {
    recorder.Begin(Labelled(std::to_string(i) + std::string(1000, '.')), i, i, Clock::now(), Clock::now());
  }
  size_t kept = 0;
  for (const OperationRecord& record : recorder.After(0)) {
    CHECK(record.label.empty() || record.label == std::to_string(record.sequence) + std::string(1000, '.'));
    kept += !record.label.empty();
  }
  CHECK(kept > 450 && kept < 550);
}

CASE("files") {
  const std::string path = "recorder_test." + std::to_string(getpid());
  {
    Recorder recorder(path);
    struct stat info;
    CHECK(stat(path.c_str(), &info) == 0 && (info.st_mode & 0777) == 0600);
    bool refused = false;
    try {
      Recorder again(path);
    } catch (const std::system_error&) {
      refused = true;
    }
    CHECK(refused);
  }
  CHECK(unlink(path.c_str()) == 0);
}

volatile sig_atomic_t others = 0;

// Each runs in a process of its own, since a handler is never removed.
template <class Work>
void InChild(Work work) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    work();
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

CASE("a signal copies the record") {
  const std::string prefix = "recorder_test.signal." + std::to_string(getpid()) + ".";
  Recorder recorder;
  recorder.End(recorder.Begin(Labelled("dumped"), 1, 2, Clock::now(), Clock::now()), false);
  const auto [memory, bytes] = recorder.memory();
  InChild([&, memory = memory, bytes = bytes] {
    DumpOnSignal(memory, bytes, prefix);
    for (int i = 0; i < 2; ++i) CHECK(raise(SIGUSR1) == 0);
  });
  for (const char* number : {"0", "1"}) {
    const std::string path = prefix + number + ".trace";
    struct stat info;
    CHECK(stat(path.c_str(), &info) == 0 && (info.st_mode & 0777) == 0600);
    std::ifstream file(path, std::ios::binary);
    const std::string copy(std::istreambuf_iterator<char>(file), {});
    CHECK(copy == std::string(static_cast<const char*>(memory), bytes));
    CHECK(unlink(path.c_str()) == 0);
  }
  // A record in a file needs no copy, an existing handler stays, and a later one replaces jaxring's.
  InChild([&, memory = memory, bytes = bytes] {
    DumpOnSignal(memory, bytes, "");
    CHECK(raise(SIGUSR1) == 0);
    signal(SIGUSR1, [](int) { others = others + 1; });
    CHECK(raise(SIGUSR1) == 0 && others == 1);
  });
  InChild([&, memory = memory, bytes = bytes] {
    signal(SIGUSR1, [](int) { others = others + 1; });
    DumpOnSignal(memory, bytes, prefix);
    CHECK(raise(SIGUSR1) == 0 && others == 1);
  });
  CHECK(access((prefix + "0.trace").c_str(), F_OK) != 0);
}

CASE("many threads") {
  Recorder recorder;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      uint64_t number = 0;
      for (const OperationRecord& record : recorder.After(0)) {
        CHECK(record.number > number);
        number = record.number;
        CHECK(record.state == State::kRunning || record.ended >= record.launched);
      }
    }
  });
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, x = Labelled("x")] {
      for (int i = 0; i < 3000; ++i) recorder.End(recorder.Begin(x, 0, i, Clock::now(), Clock::now()), false);
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  reader.join();
  CHECK_EQ(recorder.After(0).back().number, 12000u);
  for (const OperationRecord& record : recorder.After(0)) CHECK(record.state == State::kDone);
}

}  // namespace
}  // namespace jaxring::test
