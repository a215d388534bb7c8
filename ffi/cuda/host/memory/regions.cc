#include "cuda/host/memory/regions.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace jaxring::cuda {

Deadline After(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

Regions::Regions(Gpu& gpu, Service& service, int process)
    : gpu_(gpu),
      service_(service),
      own_process_(process),
      directory_(RegionDirectory::Create()),
      doorbell_(Doorbell::Create()) {
  for (int device = 0; device < gpu_.DeviceCount(); ++device) {
    uuids_.push_back(gpu_.Info(device).uuid);
    ordinals_[uuids_.back()] = device;
  }
  server_ = std::make_unique<DescriptorServer>([this](uint32_t number) { return OpenRegion(number); });
  directory_->page().descriptors = server_->source();
  watcher_ = std::thread([this] { Watch(); });
}

Regions::~Regions() {
  stop_ = true;
  doorbell_->Notify();
  watcher_.join();
}

void Regions::Attach(int process, const std::string& directory_path, const std::string& doorbell_path) {
  {
    std::lock_guard lock(mutex_);
    for (auto& peer : peers_) {
      if (peer->process == process) return;
    }
    auto peer = std::make_unique<Peer>();
    peer->process = process;
    peer->directory = RegionDirectory::Open(directory_path);
    peer->doorbell = Doorbell::Open(doorbell_path);
    peer->place = peer->directory->Place(own_process_, true);
    if (peer->place == nullptr) throw std::runtime_error("more than 256 processes of this host share device memory");
    peers_.push_back(std::move(peer));
  }
  doorbell_->Notify();
}

void Regions::Use(int device) {
  {
    std::lock_guard lock(mutex_);
    if (!devices_.insert(device).second) return;
    TableOf& own = TableLocked(device, own_process_);
    for (auto [number, base] : own_base_) {
      own.known[number] = base;
      gpu_.Copy(device, own.entries + number, &base, sizeof base);
    }
  }
  doorbell_->Notify();
}

Regions::TableOf& Regions::TableLocked(int device, int process) {
  TableOf& table = tables_[{device, process}];
  if (table.entries == nullptr) {
    table.entries = reinterpret_cast<uint64_t*>(gpu_.Allocate(device, kMaxRegions * sizeof(uint64_t)));
    table.known.resize(kMaxRegions);
  }
  return table;
}

const uint64_t* Regions::Table(int device, int process) {
  std::lock_guard lock(mutex_);
  return TableLocked(device, process).entries;
}

void Regions::Watch() {
  while (!stop_) {
    const uint32_t seen = doorbell_->Value();
    {
      std::lock_guard lock(mutex_);
      for (auto& peer : peers_) MapNews(*peer);
    }
    changed_.notify_all();
    if (!stop_) doorbell_->Wait(seen, 100'000);
  }
}

// A device that is used later is behind the others, so `mapped` is stored after all devices have mapped the regions.
void Regions::MapNews(Peer& peer) {
  DirectoryPage& page = peer.directory->page();
  const uint32_t count = page.count.load(std::memory_order_acquire);
  if (peer.place->failed.load(std::memory_order_relaxed) != 0) return;
  if (devices_.empty() || count > kMaxRegions) return;
  try {
    for (int device : devices_) {
      TableOf& table = TableLocked(device, peer.process);
      for (; table.mapped < count; ++table.mapped) MapOne(device, table, table.mapped, page);
    }
  } catch (const std::exception& error) {
    std::snprintf(peer.place->reason, sizeof peer.place->reason, "%s", error.what());
    peer.place->failed.store(1, std::memory_order_release);
    return;
  }
  peer.place->mapped.store(count, std::memory_order_release);
}

// Called for peers on the server's thread.
int Regions::OpenRegion(uint32_t number) {
  std::function<int()> make;
  {
    std::lock_guard lock(descriptors_mutex_);
    if (const auto found = descriptors_.find(number); found != descriptors_.end()) {
      make = [this, allocation = found->second] { return gpu_.ExportDescriptor(allocation); };
    } else if (number >= kMaxRegions && number - kMaxRegions < handed_out_.size()) {
      make = handed_out_[number - kMaxRegions];
    } else {
      return -1;
    }
  }
  try {
    return make();
  } catch (const GpuError&) {
    return -1;
  }
}

uint32_t Regions::HandOut(std::function<int()> make) {
  std::lock_guard lock(descriptors_mutex_);
  handed_out_.push_back(std::move(make));
  return kMaxRegions + static_cast<uint32_t>(handed_out_.size()) - 1;
}

int Regions::Fetch(int process, uint32_t number) {
  DescriptorSource source;
  {
    std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(peers_.begin(), peers_.end(), [&](const auto& peer) { return peer->process == process; });
    if (found == peers_.end()) throw std::runtime_error("process " + std::to_string(process) + " is not attached");
    source = (*found)->directory->page().descriptors;
  }
  return FetchDescriptor(source, number);
}

void Regions::MapOne(int device, TableOf& table, uint32_t number, const DirectoryPage& page) {
  const DirectoryRecord& record = page.records[number];
  const std::string uuid(record.device, strnlen(record.device, sizeof record.device));
  auto owner = ordinals_.find(uuid);
  // The device cannot reach this memory; the planner puts no such pair into one domain.
  if (owner == ordinals_.end() || !gpu_.CanAccess(device, owner->second)) return;
  uint64_t base;
  if (record.sharing == Sharing::kDescriptor) {
    const int descriptor = FetchDescriptor(page.descriptors, number);
    try {
      base = reinterpret_cast<uint64_t>(gpu_.ImportDescriptor(device, descriptor, record.bytes));
    } catch (...) {
      close(descriptor);
      throw;
    }
    close(descriptor);
  } else {
    base = reinterpret_cast<uint64_t>(gpu_.Import(device, record.handle));
  }
  gpu_.Copy(device, table.entries + number, &base, sizeof base);
  table.known[number] = base;
  mapped_bytes_ += record.bytes;
}

uint32_t Regions::ListLocked(const Allocation& allocation) {
  auto known = numbers_.find(allocation.id);
  if (known != numbers_.end()) return known->second;
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
    std::lock_guard lock(descriptors_mutex_);
    descriptors_[number] = allocation;
  } else {
    record.handle = gpu_.Export(allocation);
  }
  record.bytes = allocation.bytes;
  std::snprintf(record.device, sizeof record.device, "%s", uuids_.at(allocation.device).c_str());
  const uint64_t base = reinterpret_cast<uint64_t>(allocation.base);
  own_base_[number] = base;
  for (int device : devices_) {
    TableOf& own = TableLocked(device, own_process_);
    own.known[number] = base;
    gpu_.Copy(device, own.entries + number, &base, sizeof base);
  }
  numbers_[allocation.id] = number;
  page.count.store(number + 1, std::memory_order_release);
  for (auto& peer : peers_) peer->doorbell->Notify();
  return number;
}

bool Regions::Publish(const void* pointer, uint64_t bytes, const std::set<int>& processes, Deadline deadline,
                      Location* location, const std::function<void()>& look) {
  const Allocation allocation = gpu_.Find(pointer);
  if (allocation.sharing == Sharing::kNone || !Within(allocation, pointer, bytes)) return false;
  const uint32_t number = service_.Do([&]() -> uint32_t {
    std::lock_guard lock(mutex_);
    if (unshared_.count(allocation.id) != 0) return 0;
    try {
      return ListLocked(allocation);
    } catch (const GpuError&) {  // the driver may refuse to export an allocation that it says can be exported
      unshared_.insert(allocation.id);
      return 0;
    }
  });
  if (number == 0) return false;
  // The wait is outside the service thread, so that a slow peer does not delay other work there.
  for (int process : processes) AwaitMapped(process, number, deadline, look);
  *location = {number, static_cast<uint64_t>(static_cast<const char*>(pointer) - allocation.base)};
  return true;
}

void Regions::AwaitMapped(int process, uint32_t number, Deadline deadline, const std::function<void()>& look) {
  if (process == own_process_) return;
  for (int turn = 0;; ++turn) {
    if (const DirectoryPage::Reader* reader = directory_->Place(process, false)) {
      if (reader->failed.load(std::memory_order_acquire) != 0) {
        throw std::runtime_error("process " + std::to_string(process) + " cannot map device memory of process " +
                                 std::to_string(own_process_) + ": " + reader->reason);
      }
      if (reader->mapped.load(std::memory_order_acquire) > number) return;
    }
    if (look) look();
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("process " + std::to_string(process) + " did not map device memory of process " +
                               std::to_string(own_process_) + " within the deadline; has it ended?");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(turn < 100 ? 20 : 1000));
  }
}

char* Regions::Resolve(int device, int process, Location location, Deadline deadline) {
  if (location.region == 0) return reinterpret_cast<char*>(location.offset);
  if (location.region >= kMaxRegions)
    throw std::runtime_error("a peer names region " + std::to_string(location.region) + ", which is out of range");
  std::unique_lock lock(mutex_);
  TableOf& table = TableLocked(device, process);
  while (process != own_process_ && table.mapped <= location.region) {
    for (auto& peer : peers_) {
      if (peer->process == process && peer->place->failed.load() != 0) {
        throw std::runtime_error("process " + std::to_string(own_process_) + " cannot map device memory of process " +
                                 std::to_string(process) + ": " + peer->place->reason);
      }
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
      throw std::runtime_error("device memory of process " + std::to_string(process) +
                               " was not mapped within the deadline");
    }
  }
  const uint64_t base = table.known[location.region];
  if (base == 0) {
    throw std::runtime_error("device " + std::to_string(device) + " does not reach the memory of process " +
                             std::to_string(process));
  }
  return reinterpret_cast<char*>(base + location.offset);
}

}  // namespace jaxring::cuda
