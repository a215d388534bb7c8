// Errors name the processes that have not begun what others wait in, and no others.
#include "engine/heartbeats/behind.h"

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

std::string IsBehind(int process) { return "Process " + std::to_string(process) + " is behind"; }

void CheckBlames(const Status& status, int process, const std::vector<int>& others) {
  CHECK(status.code == Code::kDeadlineExceeded && Says(status, IsBehind(process)));
  for (int other : others) {
    const bool blamed = status.message.find(IsBehind(other)) != std::string::npos;
    if (blamed) std::cerr << status.message << std::endl;
    CHECK(!blamed);
  }
}

// One execution of a call by some of its ranks, which waits for the others until its deadline.
struct Stuck {
  Stuck(Job* job, const char* name, Settings settings)
      : call(job, Find(name), std::move(settings)),
        inputs(Inputs(call, 1)),
        outputs(Outputs(call)),
        ends(call.Describe()) {}
  void Arrive(int rank) { call.Arrive(rank, 0, inputs[rank].data(), outputs[rank].data(), ends.Expect()); }
  Call call;
  std::vector<Buffer> inputs, outputs;
  Ends ends;
};

// Processes 1 and 2 of a ring do not arrive. Process 3 reports that, has no connection with 1, and names both.
CASE("who is behind is in the error of all") {
  Job job(4, Wire::kShared, EngineOptions{2, 256, 20, 20}, 2, true);
  Site4 site(&job, "all_reduce ring 4x1 x1", Sized(700, 5));
  site.RunOk();
  for (const Status& status : site.Run({0, 3})) {
    CHECK(status.code == Code::kDeadlineExceeded);
    for (int process : {1, 2}) {
      CHECK(Says(status, "Process " + std::to_string(process) +
                             " is behind: it has not begun test all_reduce ring 4x1 x1, execution 1, which others "
                             "have. Its last operation was test all_reduce ring 4x1 x1, execution 0, done "));
    }
    CHECK(Says(status, " the others began."));
    for (const char* other : {"Process 0 is behind", "Process 3 is behind"}) {
      CHECK(status.message.find(other) == status.message.npos);
    }
  }
}

// Heartbeats list four operations, and each process is in six.
CASE("a process that is in more operations than a heartbeat lists") {
  Job job(3, Wire::kShared);
  std::vector<std::unique_ptr<Stuck>> stuck;
  for (int i = 0; i < 6; ++i) stuck.push_back(std::make_unique<Stuck>(&job, "all_reduce ring 3x1 x1", Sized(100, 3)));
  for (int rank : {0, 1}) {
    for (auto& each : stuck) each->Arrive(rank);
  }
  for (auto& each : stuck) {
    for (const Status& status : each->ends.Wait()) CheckBlames(status, 2, {0, 1});
  }
}

// Process 2 is in five operations and has begun a sixth, for which one of its ranks has not come. Process 1 is absent.
CASE("a process that waits for its own ranks in more operations than a heartbeat lists") {
  Job job(3, Wire::kShared);
  std::vector<std::unique_ptr<Stuck>> launched;
  // Longer than the other one, in whose error they are.
  for (int i = 0; i < 5; ++i) {
    launched.push_back(std::make_unique<Stuck>(&job, "all_reduce ring 2+1+2 x1", Sized(100, 5)));
    for (int rank : {0, 2, 3, 4}) launched.back()->Arrive(rank);
  }
  Stuck waits(&job, "all_reduce ring 2+1+2 x1", Sized(100, 3));
  CHECK(waits.call.schedule().placement == std::vector<int>({0, 1, 0, 2, 2}));
  for (int rank : {0, 2, 3}) waits.Arrive(rank);
  for (const Status& status : waits.ends.Wait()) CheckBlames(status, 1, {0, 2});
  for (auto& each : launched) {
    for (const Status& status : each->ends.Wait()) CheckBlames(status, 1, {0, 2});
  }
}

// Process 3 is absent. Process 2, the root, has ended its part of the broadcast and waits in the all-reduce before.
CASE("a process that has ended an operation and is in an earlier one") {
  Job job(4, Wire::kShared);
  Stuck earlier(&job, "all_reduce ring 4x1 x1", Sized(100, 3)), later(&job, "broadcast ring 4x1 x1", Sized(100, 3));
  CHECK_EQ(later.call.schedule().root, 2);
  for (int rank : {0, 1, 2}) earlier.Arrive(rank);
  for (int rank : {0, 1}) later.Arrive(rank);
  Ends sent("the root");
  later.call.Arrive(2, 0, later.inputs[2].data(), later.outputs[2].data(), sent.Expect());
  sent.WaitOk();
  for (Stuck* each : {&earlier, &later}) {
    for (const Status& status : each->ends.Wait()) CheckBlames(status, 3, {0, 1, 2});
  }
}

constexpr uint64_t kEarlier = 70, kKey = 71, kLater = 72, kUnknown = 99;

// A recorder of three operations, and a peer whose heartbeat arrived 400 ms ago: it has launched the first one.
struct PeerState {
  PeerState() {
    for (uint64_t key : {kEarlier, kKey, kLater}) recorder.Begin(Plan{}, key, 0, now, now);
    peer.said_at = now - std::chrono::milliseconds(400);
    peer.doing = {{kEarlier, false, 100, "what"}};
    peer.launches = {{kEarlier, 0, 1, -1}};
  }
  std::optional<Behind> Find() const { return FindBehind(1, peer, kKey, recorder, now); }
  const Clock::time_point now = Clock::now();
  Recorder recorder;
  ConnectedPeer peer;
};

CASE("the age of what a heartbeat said") {
  PeerState state;
  const auto found = state.Find();
  CHECK(found && found->process == 1 && found->key == kKey && found->seen_ms == 400);
  CHECK(found->last.what == "what" && found->last.age_ms == 500);
  state.peer.said_at = state.now - std::chrono::seconds(11);
  CHECK(!state.Find());
}

CASE("what settles whether a process has begun an operation") {
  PeerState state;
  state.peer.left = true;
  CHECK(!state.Find());
  state.peer.left = false;
  // It has done nothing yet.
  state.peer.doing.clear();
  state.peer.launches.clear();
  CHECK(state.Find() && state.Find()->last.what.empty());
  // It waits for the plan of an operation, maybe of this one.
  state.peer.doing = {{0, true, 100, "planned"}};
  CHECK(!state.Find());
  state.peer.doing = {{kKey, true, 100, "planned"}};
  CHECK(!state.Find());
  // Only others take part in what it launched last.
  state.peer.doing = {{kUnknown, false, 100, "of others"}};
  state.peer.launches = {{kUnknown, 0, 1, -1}};
  CHECK(!state.Find());
  state.peer.launches = {{kEarlier, 0, 1, -1}, {kUnknown, 0, 2, -1}};
  CHECK(state.Find());
  state.peer.launches = {{kEarlier, 0, 1, -1}, {kLater, 0, 2, -1}};
  CHECK(!state.Find());
  state.peer.launches = {{kEarlier, 0, 1, -1}, {kKey, 0, 2, -1}};
  CHECK(!state.Find());
  // As many activities as fit: more may be left out, unless all of them are launched.
  state.peer.doing.assign(ControlFrame::kMaxActivities, {kEarlier, true, 100, "what"});
  state.peer.launches = {{kEarlier, 0, 1, -1}};
  CHECK(state.Find());
  state.peer.doing.back().key = kUnknown;
  CHECK(!state.Find());
}

}  // namespace
}  // namespace jaxring::test
