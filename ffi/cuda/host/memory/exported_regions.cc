#include "cuda/host/memory/exported_regions.h"

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <utility>

namespace jaxring::cuda {

ExportedRegions::ExportedRegions(Gpu& gpu, int process)
    : memory_(gpu.memory),
      sharing_(gpu.sharing),
      process_(process),
      directory_(RegionDirectory::Create()),
      descriptors_(gpu.sharing) {
  for (int device = 0; device < gpu.devices.Count(); ++device) uuids_.push_back(gpu.devices.Info(device).uuid);
  directory_->page().descriptors = descriptors_.source();
}

void ExportedRegions::AddPeer(std::shared_ptr<Doorbell> doorbell) {
  MutexLock lock(mutex_);
  doorbells_.push_back(std::move(doorbell));
}

// On the publisher's thread.
RegionTable& ExportedRegions::OwnTable(int device) {
  if (auto made = tables_.find(device); made != tables_.end()) return made->second;
  RegionTable& table = tables_.try_emplace(device, memory_, device).first->second;
  for (auto [number, base] : bases_) table.known[number] = base;
  memory_.Copy(device, table.entries, table.known.data(), kMaxRegions * sizeof(uint64_t));
  return table;
}

const uint64_t* ExportedRegions::Table(int device) {
  return publisher_.Do([&] { return OwnTable(device).entries; });
}

uint64_t ExportedRegions::Base(uint32_t region) {
  return publisher_.Do([&] { return bases_.at(region); });
}

// On the publisher's thread. Returns 0 for what cannot be exported.
uint32_t ExportedRegions::List(const Allocation& allocation) {
  {
    MutexLock lock(mutex_);
    if (auto known = numbers_.find(allocation.id); known != numbers_.end()) return known->second;
  }
  uint32_t number = 0;
  std::string why_not;
  try {
    number = NewRegion(allocation);
  } catch (const std::exception& error) {  // the driver may refuse to export what it says can be exported
    why_not = error.what();
  }
  MutexLock lock(mutex_);
  numbers_[allocation.id] = number;
  posted_.erase(allocation.id);
  if (number == 0) unshared_[allocation.id] = why_not;
  for (auto& doorbell : doorbells_) doorbell->Notify();
  return number;
}

uint32_t ExportedRegions::NewRegion(const Allocation& allocation) {
  DirectoryPage& page = directory_->page();
  const uint32_t number = page.count.load(std::memory_order_relaxed);
  if (number == kMaxRegions) {
    throw std::runtime_error(
        "more than 2047 device allocations are shared with other processes: let XLA keep its "
        "memory in few allocations (XLA_PYTHON_CLIENT_PREALLOCATE, XLA_PYTHON_CLIENT_ALLOCATOR)");
  }
  DirectoryRecord& record = page.records[number];
  record.sharing = allocation.sharing;
  if (allocation.sharing == Sharing::kDescriptor) {
    descriptors_.AddRegion(number, allocation);
  } else {
    record.handle = sharing_.Export(allocation);
  }
  record.bytes = allocation.bytes;
  std::snprintf(record.device, sizeof record.device, "%s", uuids_.at(allocation.device).c_str());
  const uint64_t base = reinterpret_cast<uint64_t>(allocation.base);
  bases_[number] = base;
  for (auto& [device, own] : tables_) {
    own.known[number] = base;
    memory_.Copy(device, own.entries + number, &base, sizeof base);
  }
  ++(allocation.sharing == Sharing::kDescriptor ? by_descriptor_ : by_handle_);
  page.count.store(number + 1, std::memory_order_release);
  return number;
}

uint32_t ExportedRegions::TryShare(const Allocation& allocation, const std::set<int>& processes) {
  uint32_t number;
  {
    MutexLock lock(mutex_);
    const auto known = numbers_.find(allocation.id);
    if (known == numbers_.end()) {
      if (posted_.insert(allocation.id).second) publisher_.Post([this, allocation] { List(allocation); });
      return 0;
    }
    number = known->second;
  }
  if (number == 0) return 0;
  for (int process : processes) {
    if (MappingOf(process, number, nullptr) != Mapping::kMapped) return 0;
  }
  return number;
}

void ExportedRegions::PostGrant(const std::vector<int>& devices, const void* pointer) {
  publisher_.Post([this, devices, pointer] {
    try {
      for (int device : devices) {
        if (!memory_.Reaches(device, pointer)) memory_.Grant(device, pointer);
      }
    } catch (const GpuError&) {  // it has been freed, or stays as it is: launches copy its data
    }
  });
}

Mapping ExportedRegions::MappingOf(int process, uint32_t number, std::string* why_not) {
  if (process == process_) return Mapping::kMapped;
  const DirectoryPage::Reader* reader = directory_->Place(process, false);
  if (reader == nullptr) return Mapping::kNotYet;
  const Mapping mapping = reader->mappings[number].load(std::memory_order_acquire);
  if (mapping == Mapping::kFailed && why_not != nullptr) {
    *why_not = "process " + std::to_string(process) + " cannot map device memory of process " +
               std::to_string(process_) + ": ";
    const bool described = reader->reason_of.load(std::memory_order_acquire) == number;
    *why_not += described ? reader->reason : std::string("as others before it, of which the first: ") + reader->reason;
  }
  return mapping;
}

bool ExportedRegions::Share(const void* pointer, uint64_t bytes, const std::set<int>& processes, Deadline deadline,
                            Location* location, std::string* why_not, const std::function<void()>& look) {
  const Allocation allocation = memory_.Find(pointer);
  if (allocation.sharing == Sharing::kNone || !Within(allocation, pointer, bytes)) {
    *why_not = allocation.sharing == Sharing::kNone ? "the driver exports no such memory"
                                                    : "it is put together from several allocations";
    return false;
  }
  const uint32_t number = publisher_.Do([&] { return List(allocation); });
  if (number == 0) {
    MutexLock lock(mutex_);
    *why_not = unshared_[allocation.id];
    return false;
  }
  for (int process : processes) {
    for (int turn = 0;; ++turn) {
      const Mapping mapping = MappingOf(process, number, why_not);
      if (mapping == Mapping::kMapped) break;
      if (mapping == Mapping::kFailed) return false;
      if (look) look();
      if (std::chrono::steady_clock::now() > deadline) {
        *why_not = "process " + std::to_string(process) + " did not map device memory of process " +
                   std::to_string(process_) + " within the deadline; has it ended?";
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(turn < 100 ? 20 : 1000));
    }
  }
  *location = {number, static_cast<uint64_t>(static_cast<const char*>(pointer) - allocation.base)};
  return true;
}

ExportedRegions::Counts ExportedRegions::counts() {
  MutexLock lock(mutex_);
  return {by_handle_, by_descriptor_, unshared_.size()};
}

}  // namespace jaxring::cuda
