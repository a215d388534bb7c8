// Runs the CUDA engine's host half in several processes on the fake GPU: starts them, links them and makes plans.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/host/gpu_runtime.h"
#include "tests/cuda/host/cuda_host_gpu.h"
#include "tests/support/check.h"
#include "tests/support/schedules.h"
#include "tests/support/tcp_links.h"
#include "tests/support/verbs_wire.h"

#if defined(__SANITIZE_THREAD__)
// The processes of these tests end by _Exit, so ThreadSanitizer must report a race at once and not at exit.
extern "C" [[gnu::used, gnu::visibility("default")]] inline const char* __tsan_default_options() {
  return "halt_on_error=1";
}
#endif

namespace jaxring::test {

// A key-value store in memory that all processes of a test share.
class SharedStore {
 public:
  SharedStore()
      : page_(static_cast<Page*>(
            mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    CHECK(page_ != MAP_FAILED);
  }
  void Set(const std::string& key, const std::string& value) {
    const uint32_t i = page_->taken.fetch_add(1);
    CHECK(i < kEntries && key.size() < sizeof(Entry::key) && value.size() < sizeof(Entry::value));
    std::memcpy(page_->entries[i].key, key.c_str(), key.size() + 1);
    std::memcpy(page_->entries[i].value, value.c_str(), value.size() + 1);
    page_->entries[i].ready.store(1, std::memory_order_release);
  }
  std::string Get(const std::string& key) {
    for (int turn = 0; turn < 60'000; ++turn) {
      for (uint32_t i = 0; i < std::min<uint32_t>(page_->taken.load(), kEntries); ++i) {
        Entry& entry = page_->entries[i];
        if (entry.ready.load(std::memory_order_acquire) != 0 && key == entry.key) return entry.value;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::cerr << "no process has set the key " << key << std::endl;
    std::_Exit(1);
  }

 private:
  static constexpr uint32_t kEntries = 4096;
  struct Entry {
    std::atomic<uint32_t> ready;
    char key[124], value[1024];
  };
  struct Page {
    std::atomic<uint32_t> taken;
    Entry entries[kEntries];
  };
  Page* page_;
};

inline std::string Text(cuda::Location location) {
  return std::to_string(location.region) + " " + std::to_string(location.offset);
}
inline cuda::Location ToLocation(const std::string& text) {
  cuda::Location location;
  CHECK(std::sscanf(text.c_str(), "%lu %lu", &location.region, &location.offset) == 2);
  return location;
}

// A process of a test: its number, the number of processes, and its sockets to the others.
struct Processes {
  int own = 0, count = 1;
  SharedStore* store = nullptr;
  std::map<std::pair<int, int>, std::array<int, 2>> sockets;  // (sender, receiver)
  std::unique_ptr<ProcessEngine> engine;
  std::unique_ptr<cuda::Runtime> runtime;
  std::map<int, std::vector<std::string>> nics;  // those near each device; here all of them
};

// Links by sockets, or by RDMA if JAXRING_TEST_VERBS names devices.
inline void LinkProcesses(Processes& here) {
  const auto key = [](int of, int with, bool sending) {
    return "offer/" + std::to_string(of) + "/" + std::to_string(with) + (sending ? "/s" : "/r");
  };
  std::vector<int> peers;
  for (int p = 0; p < here.count; ++p) {
    if (p != here.own) peers.push_back(p);
  }
  for (auto& [pair, fds] : here.sockets) {
    if (pair.first != here.own) close(fds[0]);
    if (pair.second != here.own) close(fds[1]);
  }
  const auto fd = [&](int peer, bool sending) {
    return sending ? here.sockets[{here.own, peer}][0] : here.sockets[{peer, here.own}][1];
  };
  if (!VerbsDevices().empty()) {
    LinkByVerbs(
        *here.engine, here.own, peers, fd,
        [&](int peer, bool sending, const std::string& text) { here.store->Set(key(here.own, peer, sending), text); },
        [&](int peer, bool sending) { return here.store->Get(key(peer, here.own, !sending)); });
    return;
  }
  for (int p : peers) {
    for (bool sending : {true, false}) {
      LinkByTcp(here.engine->network(), p, 0, fd(p, sending), sending);
    }
  }
}

// Runs `body` in `count` processes of their own and returns their exit statuses (128 + signal).
inline std::vector<int> RunProcesses(int count, const std::function<void(Processes&)>& body) {
  SharedStore store;
  Processes processes;
  processes.count = count;
  processes.store = &store;
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from == to) continue;
      std::array<int, 2> pair;
      CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) == 0);
      processes.sockets[{from, to}] = pair;
    }
  }
  std::vector<pid_t> children;
  for (int p = 0; p < count; ++p) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(200);
      processes.own = p;
      processes.engine = std::make_unique<ProcessEngine>(EngineOptions{1, 64 * 1024, 0});
      LinkProcesses(processes);
      processes.runtime =
          std::make_unique<cuda::Runtime>(cuda::ThisGpu(), processes.engine->network(), false, p, [] {});
      for (const auto& end : VerbsDevices()) {
        for (int d = 0; d < cuda::ThisGpu().devices.Count(); ++d) processes.nics[d].push_back(end.device);
      }
      for (const auto& [device, nics] : processes.nics) processes.runtime->proxy().AllowDirect(device, nics);
      cuda::Regions& regions = processes.runtime->regions();
      store.Set("directory/" + std::to_string(p), std::to_string(getpid()) + " " +
                                                      std::to_string(regions.directory_fd()) + " " +
                                                      std::to_string(regions.doorbell_fd()));
      for (int peer = 0; peer < count; ++peer) {
        if (peer == p) continue;
        int pid, directory, doorbell;
        CHECK(std::sscanf(store.Get("directory/" + std::to_string(peer)).c_str(), "%d %d %d", &pid, &directory,
                          &doorbell) == 3);
        const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
        regions.Attach(peer, folder + std::to_string(directory), folder + std::to_string(doorbell));
      }
      try {
        body(processes);
      } catch (const std::exception&) {
        // A GPU's error is not what a kernel has found, which the runtime says a little later.
        std::vector<std::string> faults;
        for (int turn = 0; turn < 1000 && faults.empty(); ++turn) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          faults = processes.runtime->TakeFaults();
        }
        for (const std::string& fault : faults) std::cerr << fault << std::endl;
        throw;
      }
      std::cout.flush();
      // Peers may still read this process's memory.
      store.Set("end/" + std::to_string(p), "");
      for (int peer = 0; peer < count; ++peer) store.Get("end/" + std::to_string(peer));
      std::_Exit(0);
    }
    children.push_back(child);
  }
  for (auto& [pair, fds] : processes.sockets) {
    close(fds[0]);
    close(fds[1]);
  }
  std::vector<int> statuses;
  for (pid_t child : children) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return statuses;
}

struct GroupShape {
  std::string name;
  std::vector<int> process, domain;  // of each rank
  cuda::Protocol protocol = cuda::Protocol::kSimple;
  uint32_t lanes = 1;
  uint64_t slot_bytes = 8192;
  uint32_t slots = 4;
  uint64_t stage_bytes = 0;
};

inline cuda::CommunicatorSpec SpecOf(const Processes& here, const GroupShape& shape) {
  cuda::CommunicatorSpec spec;
  spec.name = shape.name;
  spec.lanes = shape.lanes;
  for (auto& wire : spec.wires) wire = {shape.slots, shape.slot_bytes};
  spec.stage_bytes = shape.stage_bytes;
  spec.timeout_s = 60;
  for (size_t r = 0; r < shape.process.size(); ++r) {
    const bool local = shape.process[r] == here.own;
    spec.ranks.push_back({shape.process[r], local ? DeviceOf(static_cast<int>(r)) : -1, shape.domain[r],
                          "rank " + std::to_string(r) + " (process " + std::to_string(shape.process[r]) + ")"});
  }
  return spec;
}

// Sets up a communicator among all processes, as the planner does.
inline std::shared_ptr<cuda::Communicator> Join(Processes& here, const GroupShape& shape) {
  auto group = here.runtime->GetCommunicator(SpecOf(here, shape));
  const std::string prefix = shape.name + "/";
  const int ranks = static_cast<int>(shape.process.size());
  for (int r = 0; r < ranks; ++r) {
    if (group->ranks().local(r)) here.store->Set(prefix + "arena/" + std::to_string(r), Text(group->OfferArena(r)));
  }
  for (int r = 0; r < ranks; ++r) {
    if (!group->ranks().local(r)) continue;
    for (int m : group->ranks().Members(r)) {
      group->EnterArena(r, m, ToLocation(here.store->Get(prefix + "arena/" + std::to_string(m))));
    }
    group->Probe(r);
    here.store->Set(prefix + "probed/" + std::to_string(r), "");
  }
  for (int r = 0; r < ranks; ++r) {
    if (!group->ranks().local(r)) continue;
    for (int m : group->ranks().Members(r)) here.store->Get(prefix + "probed/" + std::to_string(m));
    group->Verify(r);
  }
  return group;
}

inline void Connect(Processes& here, cuda::Communicator& group, const GroupShape& shape, const Schedule& schedule) {
  const std::string prefix = shape.name + "/wire/";
  const auto key = [&](int at, int from) { return prefix + std::to_string(at) + "/" + std::to_string(from); };
  std::set<std::pair<int, int>> offered;
  for (bool offer : {true, false}) {
    for (const RankTable& table : schedule.tables) {
      if (!group.ranks().local(table.rank)) continue;
      for (int32_t listed : table.peers) {
        const int peer = Peer::rank(listed);
        if (Peer::memory(listed) || peer == table.rank || group.Connected(table.rank, peer, shape.protocol)) continue;
        if (shape.domain[peer] != shape.domain[table.rank]) {
          group.ConnectNetwork(table.rank, peer, shape.protocol);
        } else if (offer && offered.insert({table.rank, peer}).second) {
          here.store->Set(key(table.rank, peer), Text(group.OfferWire(table.rank, peer, shape.protocol)));
        } else if (!offer) {
          group.ConnectWire(table.rank, peer, shape.protocol, ToLocation(here.store->Get(key(peer, table.rank))));
        }
      }
    }
  }
}

inline bool UsesMemory(const Schedule& schedule, const std::vector<int>& domain, int rank) {
  for (const RankTable& table : schedule.tables) {
    if (domain[table.rank] != domain[rank]) continue;
    for (int32_t peer : table.peers) {
      if (Peer::memory(peer)) return true;
    }
  }
  return false;
}

// Returns when all processes have called it; `key` is new.
inline void Meet(Processes& here, const std::string& key) {
  here.store->Set(key + "/" + std::to_string(here.own), "");
  for (int p = 0; p < here.count; ++p) here.store->Get(key + "/" + std::to_string(p));
}

// All processes make the plan together, since they map each other's memory meanwhile.
inline std::shared_ptr<cuda::LaunchPlan> PlanOf(Processes& here, const std::shared_ptr<cuda::Communicator>& group,
                                                const GroupShape& shape, const Schedule& schedule, DType dtype,
                                                uint64_t block,
                                                const std::function<void(cuda::LaunchPlanSpec&)>& change = {}) {
  cuda::LaunchPlanSpec spec;
  spec.what = schedule.name;
  spec.data.dtype = dtype;
  spec.data.op = ReduceOp::kSum;
  spec.data.reduces = schedule.reduces();
  spec.shape.block_elements = block;
  spec.shape.in_blocks = schedule.in_blocks;
  spec.shape.out_blocks = schedule.out_blocks;
  spec.shape.pieces = schedule.pieces;
  spec.shape.scratch_chunks = schedule.scratch_chunks;
  spec.shape.nlanes = schedule.nlanes;
  spec.data.root = schedule.root;
  spec.kernel.protocol = shape.protocol;
  spec.kernel.threads = kThreads;
  spec.timeout_s = 60;
  if (change) change(spec);
  static int number = 0;  // the same in all processes
  ++number;
  for (int r = 0; r < schedule.ranks() && !spec.kernel.multicast; ++r) {
    if (!group->ranks().local(r) || !UsesMemory(schedule, shape.domain, r)) continue;
    const uint64_t bytes = block * ElementBytes(dtype);
    group->memory().OfferReplacement(r, cuda::GroupMemory::Role::kInput, schedule.in_blocks * bytes);
    group->memory().OfferReplacement(r, cuda::GroupMemory::Role::kOutput, schedule.out_blocks * bytes);
  }
  Meet(here, "planned " + std::to_string(number));
  auto plan = std::make_shared<cuda::LaunchPlan>(group, spec);
  for (const RankTable& table : schedule.tables) {
    if (group->ranks().local(table.rank)) plan->AddLocal(table, UsesMemory(schedule, shape.domain, table.rank));
  }
  return plan;
}

}  // namespace jaxring::test
