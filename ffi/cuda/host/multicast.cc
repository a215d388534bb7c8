#include "ffi/cuda/host/multicast.h"

#include <unistd.h>

#include "ffi/cuda/host/communicator.h"

namespace jaxring::cuda {

void MulticastTeam::Step(int rank, const char* what, const std::function<void()>& take) {
  try {
    take();
  } catch (const std::exception& error) {
    throw std::runtime_error(spec_.ranks[rank].name + " cannot " + what + ": " + error.what() +
                             ". NVLS needs GPUs behind NVLink switches and a fabric manager that runs; "
                             "JAXRING_NVLS_ENABLE=0, or another algorithm, goes without it.");
  }
}

Location MulticastTeam::Offer(uint64_t bytes) {
  if (object_ != nullptr) return offered_;
  Step(0, "make a multicast object", [&] {
    object_ = gpu_.NewMulticast(spec_.ranks[0].device, static_cast<int>(spec_.ranks.size()), bytes);
    offered_ = {regions_.HandOut([object = object_] { return object->Export(); }), object_->bytes()};
  });
  return offered_;
}

void MulticastTeam::Join(int rank, Location object) {
  Place& place = places_[rank];
  if (place.added) return;
  const int device = spec_.ranks[rank].device;
  if (object_ == nullptr) {
    Step(rank, "open the multicast object of rank 0", [&] {
      const int descriptor = regions_.Fetch(spec_.ranks[0].process, static_cast<uint32_t>(object.region));
      try {
        object_ = gpu_.ImportMulticast(device, descriptor, object.offset);
      } catch (...) {
        close(descriptor);
        throw;
      }
      close(descriptor);
    });
  }
  Step(rank, "add its GPU to the multicast object", [&] { object_->Add(device); });
  place.added = true;
}

void MulticastTeam::Bind(int rank) {
  Place& place = places_[rank];
  if (place.own != nullptr) return;
  Step(rank, "bind memory to the multicast object", [&] { place.own = object_->Bind(spec_.ranks[rank].device); });
}

void MulticastTeam::Map(int rank) {
  Place& place = places_[rank];
  if (place.all != nullptr) return;
  Step(rank, "map the multicast object", [&] { place.all = object_->Map(spec_.ranks[rank].device); });
}

Multicast MulticastTeam::At(int rank, MulticastKind kind) const {
  const auto found = places_.find(rank);
  if (found == places_.end() || found->second.all == nullptr) {
    throw std::invalid_argument("a collective through multicast memory that was not mapped");
  }
  return {found->second.own, found->second.all, object_->bytes(), kind};
}

}  // namespace jaxring::cuda
