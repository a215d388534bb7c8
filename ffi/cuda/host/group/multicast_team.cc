#include "cuda/host/group/multicast_team.h"

#include <unistd.h>

#include <array>

#include "cuda/host/group/rank_group.h"

namespace jaxring::cuda {
namespace {

using Words = std::array<uint32_t, kPackBytes / sizeof(uint32_t)>;

// The value that a rank stores to all (0), and its part of a sum (1).
Words WordsOf(int rank, uint32_t purpose) {
  Words words;
  uint32_t word = 2 * static_cast<uint32_t>(rank) + purpose + 1;
  for (uint32_t& each : words) each = word = word * 0x9E3779B1u + 0x7F4A7C15u;
  return words;
}

}  // namespace

void MulticastTeam::Step(int rank, const char* what, const std::function<void()>& take) {
  try {
    take();
  } catch (const std::exception& error) {
    throw std::runtime_error(spec_.ranks[rank].name + " cannot " + what + ": " + error.what() +
                             ". NVLS needs GPUs behind NVLink switches and a running fabric manager; "
                             "JAXRING_ALGO=^nvls, or another algorithm in the call, does without it.");
  }
}

Location MulticastTeam::Offer(uint64_t bytes) {
  if (object_ != nullptr) return offered_;
  Step(0, "make a multicast object", [&] {
    object_ = gpu_.multicast.New(spec_.ranks[0].device, static_cast<int>(spec_.ranks.size()), bytes);
    offered_ = {regions_.exports().HandOut([object = object_] { return object->Export(); }), object_->bytes()};
  });
  return offered_;
}

void MulticastTeam::Join(int rank, Location object) {
  RankMemory& memory = memories_[rank];
  if (memory.added) return;
  const int device = spec_.ranks[rank].device;
  if (object_ == nullptr) {
    Step(rank, "open the multicast object of rank 0", [&] {
      const int descriptor = regions_.imports().Fetch(spec_.ranks[0].process, static_cast<uint32_t>(object.region));
      try {
        object_ = gpu_.multicast.Import(device, descriptor, object.offset);
      } catch (...) {
        close(descriptor);
        throw;
      }
      close(descriptor);
    });
  }
  Step(rank, "add its GPU to the multicast object", [&] { object_->Add(device); });
  memory.added = true;
}

void MulticastTeam::Bind(int rank) {
  RankMemory& memory = memories_[rank];
  if (memory.own != nullptr) return;
  Step(rank, "bind memory to the multicast object", [&] { memory.own = object_->Bind(spec_.ranks[rank].device); });
}

void MulticastTeam::Map(int rank) {
  RankMemory& memory = memories_[rank];
  if (memory.all != nullptr) return;
  Step(rank, "map the multicast object", [&] { memory.all = object_->Map(spec_.ranks[rank].device); });
}

void MulticastTeam::Try(int rank, MulticastKind kind) {
  const int device = spec_.ranks[rank].device;
  Args args{};
  args.group.rank = rank;
  args.group.ranks = static_cast<int32_t>(spec_.ranks.size());
  args.shape.lanes = 1;
  void* stream = gpu_.streams.New(device);
  gpu_.kernels.LaunchMulticast(device, At(rank, kind), args, kWarp, stream);
  gpu_.streams.Synchronize(device, stream);
  gpu_.streams.Close(device, stream);
}

void MulticastTeam::Probe(int rank) {
  const int device = spec_.ranks[rank].device, ranks = static_cast<int>(spec_.ranks.size());
  Step(rank, "store through the multicast object", [&] {
    if (object_->bytes() < MulticastProbe::Bytes(ranks)) throw std::invalid_argument("it is too small to be tested");
    char* own = memories_[rank].own;
    const Words stored = WordsOf(rank, 0), part = WordsOf(rank, 1);
    gpu_.memory.Copy(device, own + MulticastProbe::Own(ranks), stored.data(), sizeof stored);
    gpu_.memory.Copy(device, own + MulticastProbe::Part(ranks), part.data(), sizeof part);
    Try(rank, MulticastKind::kTryStore);
  });
}

void MulticastTeam::Verify(int rank) {
  const int device = spec_.ranks[rank].device, ranks = static_cast<int>(spec_.ranks.size());
  Step(rank, "use the multicast object", [&] {
    char* own = memories_[rank].own;
    Words found, sum{};
    for (int writer = 0; writer < ranks; ++writer) {
      gpu_.memory.Copy(device, found.data(), own + MulticastProbe::Stored(writer), sizeof found);
      if (found != WordsOf(writer, 0)) {
        throw GpuError("what " + spec_.ranks[writer].name + " stored through it did not arrive");
      }
      const Words part = WordsOf(writer, 1);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    Try(rank, MulticastKind::kTrySum);
    gpu_.memory.Copy(device, found.data(), own + MulticastProbe::Sum(ranks), sizeof found);
    if (found != sum) throw GpuError("a sum that was read through it is not the sum over all GPUs");
  });
}

Multicast MulticastTeam::At(int rank, MulticastKind kind) const {
  const auto found = memories_.find(rank);
  if (found == memories_.end() || found->second.all == nullptr) {
    throw std::invalid_argument("multicast memory was not mapped before its first collective");
  }
  return {found->second.own, found->second.all, object_->bytes(), kind};
}

}  // namespace jaxring::cuda
