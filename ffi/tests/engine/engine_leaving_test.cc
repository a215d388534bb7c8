// A process ends in good order: the others receive what it has sent, and what still waits for it fails at once.
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/job.h"
#include "tests/support/site4.h"

namespace jaxring::test {
namespace {

// A process has ended in good order. Its earlier messages are received, however late. Operations that wait for more of
// them fail at once and name it, whichever thread executes them.
void CheckLeft(Wire wire) {
  Job job(4, wire);
  Site4 ring(&job, "all_reduce ring 4x1 x1", Sized(700, 300)), begun(&job, "all_reduce tree 4x1 x1", Sized(700, 300));
  Site4 broadcast(&job, "broadcast direct 4x1 x1", Sized(140, 300));
  ring.RunOk();
  // As many messages as its rings hold.
  const int root = broadcast.call.schedule().root;
  std::vector<int> rest;
  for (int rank = 0; rank < 4; ++rank) {
    if (rank != root) rest.push_back(rank);
  }
  const std::string name = std::to_string(root);
  std::vector<Buffer> outputs = Outputs(broadcast.call), others = Outputs(begun.call);
  Ends sent("broadcast"), waits(begun.call.Describe());
  broadcast.call.Arrive(root, 0, broadcast.inputs[root].data(), outputs[root].data(), sent.Expect());
  sent.WaitOk();
  for (int rank : rest) {
    begun.call.Arrive(rank, 0, begun.inputs[rank].data(), others[rank].data(), waits.Expect());
  }
  job.engine(root).Abort("this process is ending", 2, true, " (exit code 3)");
  auto told = [&name](const Status& status) {
    CHECK(status.code == Code::kUnavailable);
    CHECK(Says(status,
               "rank " + name + " (process " + name + "): it has ended (exit code 3), so it ran fewer steps than "));
    CHECK(Says(status, "It was last seen between operations, ") && Says(status, "direct 4x1 x1, execution 0. "));
    CHECK(status.message.find("without a word") == status.message.npos);
    CHECK(status.message.find("Raise timeout") == status.message.npos);
  };
  for (const Status& status : waits.Wait()) told(status);
  for (int again = 0; again < 2; ++again) {
    for (const Status& status : ring.Run(rest)) told(status);
  }
  broadcast.run = 0;
  for (const Status& status : broadcast.Run(rest)) CHECK(status.ok() || Says(status, "no failure"));
  for (const Status& status : broadcast.Run(rest)) told(status);
  for (int p : rest)
    CHECK(!job.engine(p).network().peers().Crashed(root) &&
          job.engine(p).network().peers().Gone() == std::vector<int>{root});
}

// A process that connects to one which has ended but still answers receives its goodbye. Operations that wait for a
// link which will not be made fail, too.
void CheckLeftBefore(bool raised) {
  Job job(1, Wire::kShared), other(1, Wire::kShared);
  other.engine(0).Abort("this process is ending", 2, !raised, raised ? " after an uncaught ValueError: why" : "");
  Settings settings = Sized(100, 300);
  settings.key = job.NextKey();
  job.Answer("alone", [settings](int process, const PlanRequest& request) {
    request.Resolve(MakePlan(Find("all_reduce ring 4x1 x1"), settings, process, 1));
  });
  auto site = Site::Make(&job.engine(0), SiteSpec{{"alone"}, {0, 1, 2, 3}, 4, 60, {0}});
  std::vector<int32_t> data(100, 5);
  Ends ends("alone");
  site->Arrive(Arriving(0, 1, data, data, ends.Expect()));
  int sockets[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) == 0);
  job.network(0).AddControl(1, std::make_unique<Stream>(sockets[0]));
  other.network(0).AddControl(0, std::make_unique<Stream>(sockets[1]));
  for (const Status& status : ends.Wait()) {
    CHECK(status.code == Code::kUnavailable);
    CHECK(Says(status, raised ? "lost rank 1 (process 1): it is ending after an uncaught ValueError: why. "
                              : "rank 1 (process 1): it has ended in good order, so it ran fewer steps than "));
    CHECK(status.message.find("without a word") == status.message.npos);
  }
}

CASE("a peer has left") {
  for (Wire wire : {Wire::kShared, Wire::kTcp, Wire::kFake}) CheckLeft(wire);
}

CASE("a peer left before the operation") {
  CheckLeftBefore(false);
  CheckLeftBefore(true);
}

}  // namespace
}  // namespace jaxring::test
