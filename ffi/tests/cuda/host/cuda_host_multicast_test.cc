// Multicast memory on the fake GPU: it is set up in one and in several processes, launches use it and are replayed, and
// errors are checked where a step fails or a process dies.
#include "tests/cuda/host/cuda_host_play.h"
#include "tests/support/cases.h"

namespace jaxring::test {
namespace {

void Collectives(Processes& here) {
  const std::vector<int> domain = {0, 0, 0, 0};
  const std::vector<int> process = here.count == 1 ? domain : std::vector<int>{0, 0, 1, 1};
  constexpr std::pair<const char*, cuda::MulticastKind> kKinds[] = {
      {"all_reduce", cuda::MulticastKind::kAllReduce},
      {"reduce_scatter", cuda::MulticastKind::kReduceScatter},
      {"all_gather", cuda::MulticastKind::kAllGather}};
  for (const auto& [collective, kind] : kKinds) {
    const Schedule& schedule = Find(std::string(collective) + " direct 1x4 x1");
    uint64_t staged = 0;
    // With memory for one slice, and for many.
    for (uint64_t bytes : {1 << 16, 1 << 12}) {
      if (kSlow && bytes != 1 << 12) continue;
      Play(
          here, ShapeOf(schedule, process, domain, cuda::Protocol::kSimple), schedule, 1000,
          [kind = kind](cuda::LaunchPlanSpec& spec) { spec.kernel.multicast = kind; }, &staged, kSlow ? 0 : 20, 0,
          false, bytes);
      CHECK_EQ(staged, 0u);
    }
  }
}

template <class Function>
void Refused(Function function, const char* what) {
  try {
    function();
  } catch (const std::exception& error) {
    if (std::string(error.what()).find(what) == std::string::npos) std::cerr << error.what() << std::endl;
    CHECK(std::string(error.what()).find(what) != std::string::npos);
    return;
  }
  Fail(__FILE__, __LINE__, what);
}

// Steps in the wrong order, shared GPUs, and a driver that refuses: each error names the rank, what failed and what to
// do.
void Failures(Processes& here) {
  const Schedule& schedule = Find("all_reduce direct 1x4 x1");
  const std::vector<int> all(4, 0);
  const GroupShape shape = ShapeOf(schedule, all, all, cuda::Protocol::kSimple);
  auto group = Join(here, shape);
  const auto multicast = [](cuda::LaunchPlanSpec& spec) { spec.kernel.multicast = cuda::MulticastKind::kAllReduce; };
  Refused([&] { PlanOf(here, group, shape, schedule, DType::kInt32, 100, multicast); }, "was not mapped");
  cuda::MulticastTeam& team = group->multicast();
  const cuda::Location object = team.Offer(4096);
  CHECK_EQ(team.Offer(4096).region, object.region);
  team.Join(0, object);
  Refused([&] { team.Bind(0); }, "rank 0 (process 0) cannot bind memory to the multicast object: cuMulticastBindMem");
  for (int r : {1, 2, 3}) team.Join(r, object);
  cuda::fake::options().no_bind = true;
  Refused([&] { team.Bind(2); }, "JAXRING_ALGO=^nvls");
  cuda::fake::options().no_bind = false;
  team.Bind(0);
  Refused([&] { team.Map(0); }, "rank 0 (process 0) cannot map the multicast object");
  for (int r : {1, 2, 3}) team.Bind(r);
  for (int r : {0, 1, 2, 3}) team.Map(r);
  Refused([&] { PlanOf(here, group, shape, schedule, DType::kInt8, 100, multicast); }, "switches do not reduce");
  PlanOf(here, group, shape, schedule, DType::kInt32, 100, multicast);
  const auto mean = [&](cuda::LaunchPlanSpec& spec) {
    multicast(spec);
    spec.data.divisor = 4;
  };
  Refused([&] { PlanOf(here, group, shape, schedule, DType::kF8E5M2, 100, mean); }, "switches do not reduce");
  PlanOf(here, group, shape, schedule, DType::kBF16, 100, mean);

  cuda::fake::options().devices = 2;
  const GroupShape shared = ShapeOf(schedule, all, all, cuda::Protocol::kSimple);
  auto sharing = Join(here, shared);
  const cuda::Location other = sharing->multicast().Offer(4096);
  for (int r : {0, 1}) sharing->multicast().Join(r, other);
  Refused([&] { sharing->multicast().Join(2, other); }, "rank 2 (process 0) cannot add its GPU");
}

// The memory was mapped, but one GPU's instructions do not reach the other GPUs through it.
void Unreached(Processes& here) {
  const std::vector<int> all(4, 0);
  auto group = Join(here, ShapeOf(Find("all_reduce direct 1x4 x1"), all, all, cuda::Protocol::kSimple));
  cuda::MulticastTeam& team = group->multicast();
  const cuda::Location object = team.Offer(4096);
  for (int r = 0; r < 4; ++r) team.Join(r, object);
  for (int r = 0; r < 4; ++r) team.Bind(r);
  for (int r = 0; r < 4; ++r) {
    cuda::fake::options().lose_multicast = r == 1;
    team.Map(r);
  }
  cuda::fake::options().lose_multicast = false;
  for (int r = 0; r < 4; ++r) team.Probe(r);
  Refused([&] { team.Verify(0); },
          "rank 0 (process 0) cannot use the multicast object: what rank 1 (process 0) stored through it did not");
  Refused([&] { team.Verify(1); }, "a sum that was read through it is not the sum over all GPUs");
}

// When a step fails, everything that the steps before it allocated is given back.
void GivenBack(Processes&) {
  cuda::Gpu& gpu = cuda::ThisGpu();
  std::unique_ptr<cuda::MulticastObject> object = gpu.multicast.New(0, 2, 100);
  CHECK(object->bytes() >= 100u);
  for (int device : {0, 1}) object->Add(device);
  std::vector<char*> own;
  for (int device : {0, 1}) own.push_back(object->Bind(device));
  object->Map(1);
  for (char* memory : own) CHECK(gpu.memory.Find(memory).base == memory);
  object.reset();
  for (char* memory : own) CHECK(gpu.memory.Find(memory).base == nullptr);
}

// Regions that were not registered, and those of processes that are not attached.
void Descriptors(Processes& here) {
  cuda::ImportedRegions& regions = here.runtime->regions().imports();
  Refused([&] { regions.Fetch(1 - here.own, cuda::kMaxRegions + 7); }, "the memory has been freed");
  Refused([&] { regions.Fetch(5, cuda::kMaxRegions); }, "process 5 is not attached");
  Meet(here, "asked");
  if (geteuid() != 0 || here.own == 0) return;  // only root can become another user
  CHECK(seteuid(65534) == 0);
  Refused([&] { regions.Fetch(0, cuda::kMaxRegions + 7); }, "the owner");  // hangs up, and does not read the request
  CHECK(seteuid(0) == 0);
}

void Death(Processes& here) { DeathIn(here, "all_reduce direct 1x4 x1", 0, 1 << 12); }

void PlayOnFour(int processes, void (*body)(Processes&), const std::vector<int>& ends = {}) {
  cuda::fake::options().devices = 4;  // one for each rank: no two may share a GPU here
  PlayIn(processes, body, ends);
}

CASE("multicast_death") { PlayOnFour(2, Death, kDeathEnds); }

CASE("multicast_failures") { PlayOnFour(1, Failures); }

CASE("multicast_unreached") { PlayOnFour(1, Unreached); }

CASE("multicast_given_back") { PlayOnFour(1, GivenBack); }

CASE("multicast_descriptors") { PlayOnFour(2, Descriptors); }

CASE("multicast_one_process") { PlayOnFour(1, Collectives); }

CASE("multicast_two_processes") { PlayOnFour(2, Collectives); }

}  // namespace
}  // namespace jaxring::test
