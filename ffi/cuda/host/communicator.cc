#include "cuda/host/communicator.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <utility>

namespace jaxring::cuda {
namespace {

uint64_t RoundUp(uint64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

uint64_t Hash(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

// The size of a buffer that several plans use: at most a quarter more than asked for.
uint64_t Roomy(uint64_t bytes) {
  constexpr uint64_t kLeast = uint64_t{1} << 16;
  uint64_t step = kLeast;
  while (8 * step <= bytes) step *= 2;
  return std::max(kLeast, (bytes + step - 1) / step * step);
}

const char* const kMend =
    "Writes between the two GPUs do not arrive. PCIe access control (ACS) or an IOMMU that redirects them is a known "
    "cause: turn ACS off on the bridges between them, boot with iommu=pt or intel_iommu=off, or use GPUs that NVLink "
    "connects. JAXRING_P2P=none carries their data over the network instead.";

}  // namespace

Communicator::Communicator(Gpu& gpu, Regions& regions, Proxy* proxy, int process, CommunicatorSpec spec)
    : gpu_(gpu),
      regions_(regions),
      proxy_(proxy),
      process_(process),
      spec_(std::move(spec)),
      multicast_(gpu, regions, spec_) {
  hash_ = Hash(spec_.name);
  const int ranks = static_cast<int>(spec_.ranks.size());
  for (int r = 0; r < ranks; ++r) {
    if (!local(r)) peers_.insert(spec_.ranks[r].process);
    if (!local(r)) continue;
    for (int m : Members(r)) {
      if (!local(m)) processes_.insert(spec_.ranks[m].process);
    }
  }
  for (int r = 0; r < ranks; ++r) {
    if (!local(r)) continue;
    Local here{spec_.ranks[r].device, nullptr, nullptr, {}, {}, {}, {}, {}};
    gpu_.Prepare(here.device);
    regions_.Use(here.device);
    for (int m : Members(r)) {
      if (local(m)) gpu_.EnableAccess(here.device, spec_.ranks[m].device);
    }
    here.arena = NewMemory(here.device, ArenaBytes());
    here.own = gpu_.Allocate(here.device, OwnBytes());
    here.members.resize(Members(r).size());
    locals_.emplace(r, std::move(here));
  }
  abort_ = reinterpret_cast<uint32_t*>(gpu_.AllocatePinned(kLineBytes));
}

// Runs only if setting it up has failed: see above.
Communicator::~Communicator() = default;

std::vector<int> Communicator::Members(int rank) const {
  std::vector<int> members;
  for (int r = 0; r < static_cast<int>(spec_.ranks.size()); ++r) {
    if (r != rank && spec_.ranks[r].domain == spec_.ranks[rank].domain) members.push_back(r);
  }
  return members;
}

uint64_t Communicator::BarrierOffset(int writer) const { return writer * spec_.lanes * sizeof(EpochBarrier); }
uint64_t Communicator::ProbeOffset(int writer) const {
  return BarrierOffset(static_cast<int>(spec_.ranks.size())) + writer * 3 * kLineBytes;
}
uint64_t Communicator::StageOffset(int writer) const {
  return ProbeOffset(static_cast<int>(spec_.ranks.size())) + writer * RoundUp(2 * spec_.stage_bytes);
}
uint64_t Communicator::ArenaBytes() const { return StageOffset(static_cast<int>(spec_.ranks.size())); }

char* Communicator::NewMemory(int device, uint64_t bytes) {
  return one_process() ? gpu_.Allocate(device, bytes) : gpu_.AllocateShared(device, bytes);
}

uint64_t Communicator::ConnectionIndex(Protocol protocol, uint32_t lane, int peer) const {
  return (static_cast<uint64_t>(protocol) * spec_.lanes + lane) * spec_.ranks.size() + peer;
}
uint64_t Communicator::OwnBytes() const {
  return ConnectionIndex(Protocol{kProtocols}, 0, 0) * sizeof(Connection) +
         RoundUp(spec_.ranks.size() * sizeof(Member)) + RoundUp(2 * spec_.lanes * sizeof(uint64_t));
}

Communicator::Local& Communicator::At(int rank) {
  auto it = locals_.find(rank);
  if (it == locals_.end())
    throw std::runtime_error(spec_.name + ": rank " + std::to_string(rank) + " is not in this process");
  return it->second;
}
const Communicator::Local& Communicator::At(int rank) const { return const_cast<Communicator*>(this)->At(rank); }

Location Communicator::Offer(int rank, const char* memory, uint64_t bytes) {
  if (one_process()) return {0, reinterpret_cast<uint64_t>(memory)};
  Location location;
  std::string why_not;
  const auto look = [this] {  // a process that is gone maps nothing any more
    if (std::string why; Broken(&why)) throw std::runtime_error(why);
  };
  if (!regions_.Share(memory, bytes, processes_, After(spec_.timeout_s), &location, &why_not, look)) {
    throw std::runtime_error("device memory of " + spec_.ranks[rank].name +
                             " cannot be shared with other processes: " + why_not +
                             ". Known causes are a container without --ipc=host, a MIG slice and Windows. "
                             "JAXRING_P2P=none uses the network instead.");
  }
  return location;
}

Location Communicator::OfferArena(int rank) { return Offer(rank, At(rank).arena, ArenaBytes()); }

void Communicator::EnterArena(int rank, int peer, Location theirs) {
  Local& here = At(rank);
  const int process = spec_.ranks[peer].process;
  char* arena = regions_.Resolve(here.device, process, theirs, After(spec_.timeout_s));
  const std::vector<int> members = Members(rank);
  for (size_t m = 0; m < members.size(); ++m) {
    if (members[m] != peer) continue;
    Member& member = here.members[m];
    member.theirs = reinterpret_cast<EpochBarrier*>(arena + BarrierOffset(rank));
    member.ours = reinterpret_cast<const EpochBarrier*>(here.arena + BarrierOffset(peer));
    member.regions = regions_.Table(here.device, process);
    member.stage_theirs = arena + StageOffset(rank);
    member.stage_ours = here.arena + StageOffset(peer);
    member.rank = peer;
    gpu_.Copy(here.device,
              here.own + ConnectionIndex(Protocol{kProtocols}, 0, 0) * sizeof(Connection) + m * sizeof(Member), &member,
              sizeof member);
  }
}

uint64_t Communicator::Pattern(int writer, int reader) const {
  return (hash_ ^ (static_cast<uint64_t>(writer) << 32 | static_cast<uint32_t>(reader))) * 0x9E3779B97F4A7C15ull | 1;
}

// The probe's three lines in an arena: what the writer wrote, what this rank is about to write, what it read back.
void Communicator::Probe(int rank) {
  Local& here = At(rank);
  const std::vector<int> members = Members(rank);
  for (size_t m = 0; m < members.size(); ++m) {
    const int peer = members[m];
    char* own = here.arena + ProbeOffset(peer);
    char* theirs = reinterpret_cast<char*>(here.members[m].theirs) - BarrierOffset(rank) + ProbeOffset(rank);
    const uint64_t pattern = Pattern(rank, peer);
    gpu_.Copy(here.device, own + kLineBytes, &pattern, sizeof pattern);
    gpu_.Copy(here.device, theirs, own + kLineBytes, sizeof pattern);
    gpu_.Copy(here.device, own + 2 * kLineBytes, theirs, sizeof pattern);
    uint64_t back = 0;
    gpu_.Copy(here.device, &back, own + 2 * kLineBytes, sizeof back);
    if (back != pattern) {
      throw std::runtime_error(spec_.ranks[rank].name + " does not read from " + spec_.ranks[peer].name +
                               " what it wrote there. " + kMend);
    }
  }
}

void Communicator::Verify(int rank) {
  Local& here = At(rank);
  for (int peer : Members(rank)) {
    uint64_t found = 0;
    gpu_.Copy(here.device, &found, here.arena + ProbeOffset(peer), sizeof found);
    if (found != Pattern(peer, rank)) {
      throw std::runtime_error(spec_.ranks[rank].name + " does not find what " + spec_.ranks[peer].name +
                               " wrote into its memory. " + kMend);
    }
  }
}

Connection* Communicator::ConnectionOf(int rank, int peer, Protocol protocol) const {
  return reinterpret_cast<Connection*>(At(rank).own) + ConnectionIndex(protocol, 0, peer);
}

void Communicator::Fill(int rank, Protocol protocol, bool members, Args* args) const {
  const Local& here = At(rank);
  const WireShape shape = spec_.wires[static_cast<int>(protocol)];
  const uint64_t ranks = spec_.ranks.size();
  args->connections = reinterpret_cast<Connection*>(here.own) + ConnectionIndex(protocol, 0, 0);
  char* behind = here.own + ConnectionIndex(Protocol{kProtocols}, 0, 0) * sizeof(Connection);
  args->members = reinterpret_cast<const Member*>(behind);
  args->member_count = members ? static_cast<uint32_t>(here.members.size()) : 0;
  args->epochs = reinterpret_cast<uint64_t*>(behind + RoundUp(ranks * sizeof(Member)));
  args->slots = shape.slots;
  args->slot_bytes = shape.slot_bytes;
  args->stage_bytes = RoundUp(2 * spec_.stage_bytes) / 2;
  args->connections_per_lane = static_cast<uint32_t>(ranks);
  args->epoch_lanes = spec_.lanes;
  args->abort = abort_;
  args->rank = rank;
  args->ranks = static_cast<int32_t>(ranks);
  args->protocol = protocol;
  args->spread_faults = true;
}

char* Communicator::Scratch(int rank, uint64_t bytes) {
  MutexLock lock(mutex_);
  auto& buffers = At(rank).scratch;
  for (auto& [size, memory] : buffers) {
    if (size >= bytes) return memory;
  }
  // Launches on one device run one after another, so plans share the buffer. Smaller ones are kept, since graphs may
  // use them.
  const uint64_t size = Roomy(bytes);
  buffers.emplace_back(size, NewMemory(At(rank).device, size));
  return buffers.back().second;
}

void Communicator::OfferReplacement(int rank, Role role, uint64_t bytes) {
  if (one_process() && OtherDevices(rank).empty()) return;
  if (bytes == 0 || FindReplacement(rank, role, bytes) != nullptr) return;
  const uint64_t size = Roomy(bytes);
  char* memory = NewMemory(At(rank).device, size);
  const Location location = Offer(rank, memory, size);
  MutexLock lock(mutex_);
  At(rank).replacements[static_cast<int>(role)].push_back({size, memory, location});
}

std::vector<int> Communicator::OtherDevices(int rank) const {
  std::set<int> others;
  for (int member : Members(rank)) {
    if (local(member) && spec_.ranks[member].device != At(rank).device) others.insert(spec_.ranks[member].device);
  }
  return {others.begin(), others.end()};
}

std::string Communicator::GrantBuffers(int rank, const void* in, uint64_t in_bytes, const void* out,
                                       uint64_t out_bytes) {
  std::string how;
  for (auto [pointer, bytes] : {std::pair(in, in_bytes), std::pair(out, out_bytes)}) {
    for (int device : OtherDevices(rank)) {
      if (bytes == 0 || gpu_.Reaches(device, pointer)) continue;
      try {
        gpu_.Grant(device, pointer);
      } catch (const GpuError& error) {
        return "staged: device " + std::to_string(device) + " does not reach the memory of rank " +
               std::to_string(rank) + ", since " + error.what();
      }
      how = "granted to the process's other devices, which XLA's allocator had not named";
    }
  }
  return how;
}

std::string Communicator::ShareBuffers(int rank, const void* in, uint64_t in_bytes, const void* out,
                                       uint64_t out_bytes) {
  const auto look = [this] {
    if (std::string why; Broken(&why)) throw std::runtime_error(why);
  };
  if (one_process()) return GrantBuffers(rank, in, in_bytes, out, out_bytes);
  bool descriptor = false;
  for (auto [what, pointer, bytes] : {std::tuple("input", in, in_bytes), std::tuple("output", out, out_bytes)}) {
    Location location;
    std::string why_not;
    if (bytes == 0) continue;
    if (!regions_.Share(pointer, bytes, processes_, After(spec_.timeout_s), &location, &why_not, look)) {
      return "staged: the " + std::string(what) + " of rank " + std::to_string(rank) + " is not shared, since " +
             why_not;
    }
    descriptor |= gpu_.Find(pointer).sharing == Sharing::kDescriptor;
  }
  return descriptor ? "shared by file descriptor" : "shared by CUDA IPC";
}

const Communicator::Replacement* Communicator::FindReplacement(int rank, Role role, uint64_t bytes) const {
  MutexLock lock(mutex_);
  for (const Replacement& each : At(rank).replacements[static_cast<int>(role)]) {
    if (each.bytes >= bytes) return &each;
  }
  return nullptr;
}

void Communicator::Break(const std::string& why) {
  MutexLock lock(mutex_);
  if (broken_.empty()) broken_ = why;
  __atomic_store_n(abort_, 1u, __ATOMIC_RELEASE);
}

void Communicator::MarkPeerDead(int process) {
  const uint64_t end = ~uint64_t{0};  // later than any epoch, with the failure mark
  for (auto& [rank, here] : locals_) {
    for (int peer : Members(rank)) {
      if (spec_.ranks[peer].process != process) continue;
      for (uint32_t lane = 0; lane < spec_.lanes; ++lane) {
        char* barrier = here.arena + BarrierOffset(peer) + lane * sizeof(EpochBarrier);
        gpu_.Copy(here.device, barrier + offsetof(EpochBarrier, end), &end, sizeof end);
      }
    }
  }
}

std::string Communicator::Damage() const {
  MutexLock lock(mutex_);
  return damage_;
}

void Communicator::Describe(uint32_t call, const std::string& what) {
  MutexLock lock(mutex_);
  calls_[static_cast<uint16_t>(call)] = what;
}

std::string Communicator::Described(uint64_t call) const {
  MutexLock lock(mutex_);
  const auto found = calls_.find(static_cast<uint16_t>(call));
  return found == calls_.end() ? "" : found->second;
}

cuda::Status* Communicator::NewStatus() {
  static_assert(sizeof(Status) <= kLineBytes);
  constexpr uint64_t kPage = 4096;
  MutexLock lock(mutex_);
  if (statuses_left_ == 0) {
    statuses_ = gpu_.AllocatePinned(kPage);
    statuses_left_ = kPage / kLineBytes;
  }
  --statuses_left_;
  return reinterpret_cast<Status*>(std::exchange(statuses_, statuses_ + kLineBytes));
}

bool Communicator::Broken(std::string* why) const {
  MutexLock lock(mutex_);
  *why = broken_;
  return !broken_.empty();
}

}  // namespace jaxring::cuda
