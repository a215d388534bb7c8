#include "tests/support/forked.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "tests/support/tcp_links.h"
#include "tests/support/verbs_wire.h"

namespace jaxring::test {
namespace {

void Pair(int* ends) { CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0); }

}  // namespace

void* SharedPages(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

bool LinkShared(int process, ProcessEngine& engine, const std::vector<int>& peers, Shown* const* shown,
                const std::function<bool()>& over) {
  SystemNetwork& network = engine.network();
  for (int p : peers) {
    const std::string offer = network.connectors().Offer("shm", {p, 0, true}, {});
    CHECK(offer.size() < sizeof shown[process]->offers[p]);
    std::strcpy(shown[process]->offers[p], offer.c_str());
    shown[process]->offered[p] = true;
  }
  for (int p : peers) {
    const Shown& peer = *shown[p];
    Until([&] { return peer.offered[process] || over(); });
    if (!peer.offered[process]) return false;
    try {
      network.connectors().Offer("shm", {p, 0, false}, {});
      for (bool sending : {false, true}) {
        // The offer of the peer's sending end has all that its receiving one's has.
        network.connectors().Prepare({p, 0, sending}, peer.offers[process]);
        network.AddLink({p, 0, sending}, Descriptor(), 0);
      }
    } catch (const std::system_error&) {
      // The descriptors of a process that ended are gone, a moment before its end is reported.
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      Until([&] { return over() || std::chrono::steady_clock::now() > until; });
      if (!over()) throw;
      return false;
    }
  }
  // No process leaves before all have mapped its memory.
  shown[process]->mapped = true;
  Until([&] {
    return over() || std::all_of(peers.begin(), peers.end(), [&](int p) { return shown[p]->mapped.load(); });
  });
  return !over();
}

ForkedJob::ForkedJob(int processes)
    : processes_(processes), offers_(static_cast<Offers*>(SharedPages(kMost * sizeof(Offers)))) {
  CHECK(processes <= kMost);
  for (int a = 0; a < processes; ++a) {
    for (int b = 0; b < processes; ++b) {
      if (a != b) Pair(data_[a][b]);
      if (a >= b) continue;
      int ends[2];
      Pair(ends);
      control_[a][b] = ends[0];
      control_[b][a] = ends[1];
    }
  }
}

void ForkedJob::Keep(int process) {
  for (int a = 0; a < processes_; ++a) {
    for (int b = 0; b < processes_; ++b) {
      if (a == b) continue;
      if (a != process) close(data_[a][b][0]);
      if (b != process) close(data_[a][b][1]);
      if (a != process) close(control_[a][b]);
    }
  }
}

void ForkedJob::Begin(int process, ProcessEngine& engine) {
  offers_[process].shown.pid = getpid();
  for (int p = 0; p < processes_; ++p) {
    if (p != process) engine.network().AddControl(p, std::make_unique<Stream>(control_[process][p]));
  }
}

void ForkedJob::Link(int process, ProcessEngine& engine, Wire wire, int absent) {
  std::vector<int> peers;
  Shown* shown[kMost];
  for (int p = 0; p < processes_; ++p) {
    shown[p] = &offers_[p].shown;
    if (p != process && p != absent) peers.push_back(p);
  }
  if (wire != Wire::kTcp) {
    LinkShared(process, engine, peers, shown, [] { return false; });
    return;
  }
  if (!VerbsDevices().empty()) return LinkVerbs(process, engine, peers);
  for (int p : peers) {
    LinkByTcp(engine.network(), p, 0, sending(process, p), true);
    LinkByTcp(engine.network(), p, 0, receiving(process, p), false);
  }
}

void ForkedJob::LinkVerbs(int process, ProcessEngine& engine, const std::vector<int>& peers) {
  int left = 2 * static_cast<int>(peers.size());
  LinkByVerbs(
      engine, process, peers,
      [&](int peer, bool sends) { return sends ? sending(process, peer) : receiving(process, peer); },
      [&](int peer, bool sends, const std::string& text) {
        CHECK(text.size() < sizeof offers_->offers[0][0]);
        std::strcpy(offers_[process].offers[peer][sends ? 0 : 1], text.c_str());
        if (--left == 0) offers_[process].offered = true;
      },
      [&](int peer, bool sends) {
        Until([&] { return offers_[peer].offered.load(); });
        return std::string(offers_[peer].offers[process][sends ? 1 : 0]);
      });
}

std::vector<pid_t> ForkMembers(ForkedJob& job, const std::function<int(int)>& run) {
  alarm(90);
  std::vector<pid_t> members;
  for (int p = 0; p < job.processes(); ++p) {
    members.push_back(fork());
    CHECK(members[p] >= 0);
    if (members[p] != 0) continue;
    job.Keep(p);
    alarm(80);
    _exit(run(p));
  }
  job.Keep(-1);
  return members;
}

bool EndedWell(pid_t pid, const std::string& what) {
  int status;
  CHECK(waitpid(pid, &status, 0) == pid);
  if (WIFSIGNALED(status)) std::cerr << what << " hangs or crashes" << std::endl;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int RunCases(int argc, char** argv, size_t count, const std::function<int(size_t)>& run, size_t stride, int at_once) {
  if (argc > 1) stride = std::stoul(argv[1]);
  if (argc > 2) at_once = std::stoi(argv[2]);
  int running = 0, failures = 0;
  size_t begun = 0;
  const auto reap = [&] {
    int status;
    CHECK(wait(&status) > 0);
    --running;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failures;
  };
  for (size_t i = 0; i < count; i += stride) {
    ++begun;
    if (running == at_once) reap();
    const pid_t runner = fork();
    CHECK(runner >= 0);
    if (runner == 0) _exit(run(i));
    ++running;
  }
  while (running > 0) reap();
  std::cout << begun - failures << " of " << begun << " cases end as they should" << std::endl;
  return failures == 0 ? 0 : 1;
}

}  // namespace jaxring::test
