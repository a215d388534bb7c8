// Connections that damage data: the errors of all processes say so, and do not say that a process died.
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/site4.h"
#include "tests/support/tcp_links.h"

namespace jaxring::test {
namespace {

// Checks the error of all ranks that wait for rank 3, and of rank 3 when it arrives.
void AllAreTold(Site4* site, const std::function<void()>& damage) {
  std::vector<Buffer> outputs = Outputs(site->call);
  Ends ends(site->call.Describe());
  const int run = site->run++;
  auto arrive = [&](int rank) {
    site->call.Arrive(rank, run, site->inputs[rank].data(), outputs[rank].data(), ends.Expect());
  };
  for (int rank : {0, 1, 2}) arrive(rank);
  damage();
  for (const Status& status : ends.Wait()) CHECK(status.code == Code::kDataLoss);
  arrive(3);
  for (const Status& status : ends.Wait()) {
    CHECK(status.code == Code::kDataLoss);
    CHECK(Says(status, " arrived damaged"));
    CHECK(Says(status, "rank 0 (process 0)") || Says(status, "rank 1 (process 1)"));
    CHECK(Says(status, "jaxring.rebuild() goes on with new connections"));
    CHECK(status.message.find("without a word") == status.message.npos);
  }
}

CASE("a damaged data connection") {
  Job job(4, Wire::kShared);
  Site4 site(&job, "all_reduce ring 4x1 x1", Sized(700));
  site.RunOk();
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const int between = dup(ends[0]);
  LinkByTcp(job.network(0), 1, 7, ends[0], true);
  LinkByTcp(job.network(1), 0, 7, ends[1], false);
  const std::vector<char> garbage(100, 'x');
  AllAreTold(&site, [&] { CHECK(send(between, garbage.data(), garbage.size(), MSG_NOSIGNAL) > 0); });
  close(between);
}

CASE("a damaged control connection") {
  Job job(4, Wire::kShared);
  Site4 site(&job, "all_reduce ring 4x1 x1", Sized(700));
  site.RunOk();
  AllAreTold(&site, [&] { job.DamageControl(0, 1); });
}

}  // namespace
}  // namespace jaxring::test
