#include "cuda/host/memory/regions.h"

#include <stdexcept>
#include <string>

namespace jaxring::cuda {

void Regions::Attach(int process, const std::string& directory_path, const std::string& doorbell_path) {
  if (auto doorbell = imports_.Attach(process, directory_path, doorbell_path)) exports_.AddPeer(std::move(doorbell));
}

void Regions::Use(int device) {
  if (imports_.Use(device)) exports_.Table(device);
}

char* Regions::Resolve(int device, int process, Location location, Deadline deadline) {
  if (location.region == 0) return reinterpret_cast<char*>(location.offset);
  if (location.region >= kMaxRegions)
    throw std::runtime_error("a peer names region " + std::to_string(location.region) + ", which is out of range");
  const auto region = static_cast<uint32_t>(location.region);
  const uint64_t base = process == process_ ? exports_.Base(region) : imports_.Base(device, process, region, deadline);
  return reinterpret_cast<char*>(base + location.offset);
}

const uint64_t* Regions::Table(int device, int process) {
  return process == process_ ? exports_.Table(device) : imports_.Table(device, process);
}

}  // namespace jaxring::cuda
