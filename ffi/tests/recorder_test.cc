// The recorder: what it keeps, what it gives back, and that threads do not disturb each other.
#include "ffi/engine/recorder.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ffi/tests/check.h"

namespace jaxring::test {
namespace {

using State = OperationState;
using Clock = std::chrono::steady_clock;

std::shared_ptr<const std::string> Label(const std::string& text) { return std::make_shared<const std::string>(text); }

void CheckStates() {
  Recorder recorder;
  CHECK(recorder.After(0).empty());
  const Clock::time_point before = Clock::now();
  const uint64_t a = recorder.Begin(Label("a"), 7, before), b = recorder.Begin(Label("b"), 0, before);
  recorder.End(b, true);
  recorder.End(0, false);
  std::vector<OperationRecord> records = recorder.After(0);
  CHECK_EQ(records.size(), 2u);
  CHECK(records[0].number == a && *records[0].label == "a" && records[0].sequence == 7);
  CHECK(records[0].state == State::kRunning && records[0].ended == Clock::time_point());
  CHECK(records[0].arrived == before && before <= records[0].launched);
  CHECK(records[1].number == b && records[1].state == State::kFailed && records[1].ended >= records[1].launched);
  recorder.End(a, false);
  CHECK(recorder.After(0)[0].state == State::kDone);
  CHECK_EQ(recorder.After(a).size(), 1u);
  CHECK(recorder.After(b).empty());
}

void CheckOldOnesGo() {
  Recorder recorder;
  const uint64_t first = recorder.Begin(Label("first"), 0, Clock::now());
  uint64_t last = first;
  for (uint64_t i = 0; i < Recorder::kCapacity; ++i) last = recorder.Begin(Label("later"), i, Clock::now());
  std::vector<OperationRecord> records = recorder.After(0);
  CHECK_EQ(records.size(), Recorder::kCapacity);
  CHECK(records.front().number == first + 1 && records.back().number == last);
  recorder.End(first, false);  // its place is another's now
  for (const OperationRecord& record : recorder.After(0)) CHECK(record.state == State::kRunning);
}

void CheckManyThreads() {
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
    writers.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) recorder.End(recorder.Begin(Label("x"), i, Clock::now()), false);
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

int main() {
  using namespace jaxring::test;
  CheckStates();
  CheckOldOnesGo();
  CheckManyThreads();
}
