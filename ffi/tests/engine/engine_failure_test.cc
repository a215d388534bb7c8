// Failures: every rank gets one error that names the cause, and later operations succeed if they can.
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

CASE("a rank of this process does not arrive") {
  Job job(1, Wire::kShared);
  Site4 site(&job, "all_reduce direct 1x4 x1", Sized(100, 60, Protocol::kMemory), 0.3);
  site.RunOk();
  for (const Status& status : site.Run({3, 1})) {
    CHECK(status.code == Code::kDeadlineExceeded && Says(status, "only ranks 1, 3 of this process came"));
  }
  site.RunOk();
}

// A participant that arrives after the others have failed fails, too, and the processes' sequence numbers still agree.
void CheckLateHere(Wire wire) {
  Job job(2, wire);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100, 1), 0.3);
  site.RunOk();
  for (const Status& status : site.Run({0, 2, 3})) CHECK(status.code == Code::kDeadlineExceeded);
  --site.run;
  for (const Status& status : site.Run({1})) CHECK(status.code == Code::kDeadlineExceeded);
  for (int i = 0; i < 3; ++i) site.RunOk();
  // More failures than a site keeps, all within one deadline.
  std::vector<Buffer> outputs = Outputs(site.call);
  Ends ends("forgotten");
  for (int run = 1000; run < 1100; ++run) {
    site.call.Arrive(0, run, site.inputs[0].data(), outputs[0].data(), ends.Expect());
    site.call.Arrive(2, run, site.inputs[2].data(), outputs[2].data(), ends.Expect());
  }
  for (const Status& status : ends.Wait()) CHECK(status.code == Code::kDeadlineExceeded);
  for (int i = 0; i < 3; ++i) site.RunOk();
}

// A process does not arrive: the errors name its rank. It arrives later, and fails or succeeds. Then operations succeed
// again.
void CheckAbsentProcess(Wire wire, Protocol protocol) {
  Job job(2, wire);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(700, 1.5, protocol));
  site.RunOk();
  for (const Status& status : site.Run({0, 1})) {
    CHECK(status.code == Code::kDeadlineExceeded);
    CHECK(Says(status, "rank 0 (process 0) waits for a message from rank 3 (process 1)"));
  }
  site.Run({2, 3});
  for (int i = 0; i < 40; ++i) site.RunOk();
  for (int process : {0, 1}) CHECK_EQ(job.engine(process).network().unexpected().bytes(), 0u);
}

// The connections break, or the peer's process ends, while an operation waits.
void CheckLostPeer(Wire wire, bool cut) {
  Job job(2, wire);
  Site4 across(&job, "all_reduce ring 2x2 x1", Sized(700)), here(&job, "all_reduce ring 1x4 x1", Sized(700));
  across.RunOk();
  std::vector<Buffer> outputs = Outputs(across.call);
  Ends ends(across.call.Describe());
  for (int rank : {0, 1}) {
    across.call.Arrive(rank, 99, across.inputs[rank].data(), outputs[rank].data(), ends.Expect());
  }
  cut ? job.Cut(0, 1) : job.CutControl(0, 1);
  for (int again = 0; again < 2; ++again) {
    for (const Status& status : again ? across.Run({0, 1}) : ends.Wait()) {
      CHECK(status.code == Code::kUnavailable);
      CHECK(Says(status, " lost rank ") && Says(status, "(process 1): "));
    }
  }
  here.RunOk();
}

// The same operation with different sizes in two processes: neither accepts the other's data.
void CheckDisagreement(Wire wire, uint64_t here, uint64_t there) {
  Job job(2, wire);
  Settings ours = Sized(here), theirs = Sized(there);  // all fail long before their deadline of a minute
  ours.key = theirs.key = job.NextKey();
  Site4 site(&job, "all_gather direct 2x2 x1", ours), other(&job, "all_gather direct 2x2 x1", theirs);
  std::vector<Buffer> outputs = Outputs(site.call), other_outputs = Outputs(other.call);
  Ends ends("disagreement");
  for (int rank : {0, 1}) {
    site.call.Arrive(rank, 1, site.inputs[rank].data(), outputs[rank].data(), ends.Expect());
    const int peer = rank + 2;
    other.call.Arrive(peer, 1, other.inputs[peer].data(), other_outputs[peer].data(), ends.Expect());
  }
  for (const Status& status : ends.Wait()) {
    CHECK(status.code == Code::kInvalidArgument && Says(status, "The ranks disagree about the operation's shape"));
  }
  Site4 next(&job, "all_gather direct 2x2 x1", Sized(100));
  for (int i = 0; i < 30; ++i) next.RunOk();
}

// A crash that one process observes fails all: a process that waits for another one, one whose ranks have not all
// arrived, and one that arrives later.
void CheckSpread(Wire wire) {
  Job job(4, wire);
  Site4 site(&job, "all_reduce ring 4x1 x1", Sized(700, 1)), next(&job, "all_reduce ring 4x1 x1", Sized(700));
  site.RunOk();
  for (const Status& status : site.Run({0, 2, 3})) {
    CHECK(status.code == Code::kDeadlineExceeded && Says(status, "execution 1: not finished 1 s after it began"));
  }
  --site.run;
  for (const Status& status : site.Run({1})) {
    CHECK(status.code == Code::kDeadlineExceeded && Says(status, "was the first to see it"));
  }
  for (int i = 0; i < 3; ++i) site.RunOk();
  next.RunOk();
  // Processes 1 and 3 lose each other, and no other process observes it.
  std::vector<Buffer> outputs = Outputs(next.call);
  Ends ends(next.call.Describe());
  for (int rank : {0, 1, 2}) next.call.Arrive(rank, 99, next.inputs[rank].data(), outputs[rank].data(), ends.Expect());
  job.CutControl(1, 3);
  for (const Status& status : ends.Wait()) CHECK(status.code == Code::kUnavailable && Says(status, "lost rank "));
  // Processes that did not observe it name the one that reported it.
  for (const Status& status : site.Run({0})) {
    CHECK(Says(status, "rank 1 (process 1)") && Says(status, "rank 3 (process 3)") && Says(status, ") says"));
  }
}

// The error describes the late process: alive and idle, or in another call.
CASE("a failure describes which process waits for which") {
  Job job(2, Wire::kShared);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100, 1)), other(&job, "all_gather direct 2x2 x1", Sized(100, 1));
  site.RunOk();
  // On a busy machine a process's heartbeat may be later than a deadline.
  auto all_say = [](const std::vector<Status>& statuses, const std::string& a, const std::string& b) {
    return std::all_of(statuses.begin(), statuses.end(), [&](const Status& status) {
      CHECK(status.code == Code::kDeadlineExceeded);
      return Says(status, a) && Says(status, b);
    });
  };
  bool said = false;
  for (int attempt = 0; attempt < 20 && !said; ++attempt) {
    said = all_say(site.Run({0, 1}), "rank 3 (process 1) is alive, and between operations, ",
                   "after the end of test all_reduce ring 2x2 x1, execution 0.");
  }
  CHECK(said);
  said = false;
  for (int run = 50; run < 70 && !said; ++run) {
    std::vector<Buffer> outputs = Outputs(site.call), other_outputs = Outputs(other.call);
    Ends ends("swapped"), other_ends("swapped");
    for (int rank : {0, 1}) {
      site.call.Arrive(rank, run, site.inputs[rank].data(), outputs[rank].data(), ends.Expect());
      const int peer = rank + 2;
      other.call.Arrive(peer, run, other.inputs[peer].data(), other_outputs[peer].data(), other_ends.Expect());
    }
    said = all_say(ends.Wait(), "in test all_gather direct 2x2 x1, execution ", "different programs");
    for (const Status& status : other_ends.Wait()) CHECK(status.code == Code::kDeadlineExceeded);
  }
  CHECK(said);
}

// Received frames are validated.
CASE("garbage on a control connection") {
  ControlFrame alive;
  alive.activities = {{7, true, 3, "what"}, {8, false, 4, std::string(5000, 'w')}};
  alive.times = {5, 4, 3};
  alive.sample = {1, 2, 3, 4, 5, 6};
  alive.launches = std::vector<LaunchTime>(9, {1, 2, 3, -1});
  alive.behind = {{7, 3, 100, {6, false, 5, "before"}}};
  ControlFrame failed;
  failed.kind = ControlFrame::Kind::kFailed;
  failed.code = Code::kInternal;
  failed.text = "tex\x1bt";
  const std::string good = EncodeFrame(alive) + EncodeFrame(failed);
  FrameReader reader;
  ControlFrame frame;
  for (char c : good) {
    CHECK(reader.Next(&frame) != FrameReader::Result::kGarbage);
    reader.Feed(&c, 1);
  }
  CHECK(reader.Next(&frame) == FrameReader::Result::kFrame && frame.text == "tex t" && frame.code == Code::kInternal);
  CHECK(reader.Next(&frame) == FrameReader::Result::kMore);
  // Every byte of a frame, changed to a few values, and every length: the reader returns a frame, kMore or kGarbage.
  int garbage = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (int value : {0, 1, 2, 5, 6, 127, 128, 255}) {
      std::string bad = good;
      bad[i] = static_cast<char>(value);
      FrameReader one;
      one.Feed(bad.data(), bad.size() - i % 3);
      FrameReader::Result result;
      while ((result = one.Next(&frame)) == FrameReader::Result::kFrame) {
        CHECK(frame.activities.size() <= ControlFrame::kMaxActivities && frame.text.size() <= ControlFrame::kMaxText);
        CHECK(frame.launches.size() <= ControlFrame::kMaxLaunches && frame.behind.size() <= ControlFrame::kMaxBehind);
      }
      garbage += result == FrameReader::Result::kGarbage;
    }
  }
  CHECK(garbage > 20);
  // A process that sends garbage counts as crashed.
  Job job(1, Wire::kShared);
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  job.network(0).AddControl(1, std::make_unique<Stream>(ends[0]));
  // Not malformed, but no times of a heartbeat.
  alive.times = {1, INT64_MAX, INT64_MAX};
  const std::string odd = EncodeFrame(alive);
  CHECK(write(ends[1], odd.data(), odd.size()) == static_cast<ssize_t>(odd.size()));
  std::vector<Arrivals> arrivals;
  while ((arrivals = job.engine(0).network().peers().TakeArrivals())[1].samples.empty()) std::this_thread::yield();
  CHECK_EQ(arrivals[1].clock.error_ns, -1);
  CHECK(write(ends[1], "\xff\xff\xff\xff", 4) == 4);
  char byte;
  while (recv(ends[1], &byte, 1, 0) > 0) {
  }
  while (!job.engine(0).network().peers().Crashed(1)) std::this_thread::yield();
  close(ends[1]);
}

// Two executions by two processes, then one in which the other process does not arrive.
CASE("failures are recorded") {
  Job job(2, Wire::kShared);
  Site4 site(&job, "all_reduce ring 2x2 x1", Sized(100, 2));
  site.RunOk();
  site.RunOk();
  for (const Status& status : site.Run({0, 1})) CHECK(status.code == Code::kDeadlineExceeded);
  std::vector<OperationRecord> records = job.engine(0).recorder().After(0);
  CHECK_EQ(records.size(), 3u);
  for (uint64_t i = 0; i < records.size(); ++i) {
    CHECK_EQ(records[i].sequence, i);
    CHECK(records[i].state == (i < 2 ? OperationState::kDone : OperationState::kFailed));
    CHECK(records[i].arrived <= records[i].launched && records[i].launched <= records[i].ended);
  }
  CHECK_EQ(job.engine(1).recorder().After(0).size(), 2u);
}

CASE("a rank of this process comes late") {
  for (Wire wire : {Wire::kShared, Wire::kTcp, Wire::kFake}) CheckLateHere(wire);
}

CASE("a process does not arrive") {
  for (Wire wire : {Wire::kShared, Wire::kTcp, Wire::kFake}) {
    CheckAbsentProcess(wire, Protocol::kLL);
    CheckAbsentProcess(wire, Protocol::kSimple);
  }
}

CASE("a peer is lost") {
  for (Wire wire : {Wire::kShared, Wire::kTcp, Wire::kFake}) CheckLostPeer(wire, false);
  CheckLostPeer(Wire::kTcp, true);
}

CASE("processes disagree on a message's length") {
  for (Wire wire : {Wire::kShared, Wire::kTcp, Wire::kFake}) {
    CheckDisagreement(wire, 100, 101);
    CheckDisagreement(wire, 30, 101);
  }
}

CASE("a failure reaches all processes") {
  for (Wire wire : {Wire::kShared, Wire::kTcp, Wire::kFake}) CheckSpread(wire);
}

}  // namespace
}  // namespace jaxring::test
