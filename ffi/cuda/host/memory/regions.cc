#include "cuda/host/memory/regions.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/thread_name.h"

namespace jaxring::cuda {

Regions::Regions(Gpu& gpu, int process)
    : gpu_(gpu), own_process_(process), directory_(RegionDirectory::Create()), doorbell_(Doorbell::Create()) {
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
    MutexLock lock(mutex_);
    for (auto& peer : peers_) {
      if (peer->process == process) return;
    }
    auto peer = std::make_unique<Peer>();
    peer->process = process;
    peer->directory = RegionDirectory::Open(directory_path);
    peer->doorbell = Doorbell::Open(doorbell_path);
    peer->place = peer->directory->Place(own_process_, true);
    if (peer->place == nullptr) throw std::runtime_error("more than 256 processes of this host share device memory");
    MutexLock own(own_mutex_);
    bells_.push_back(peer->doorbell);
    peers_.push_back(std::move(peer));
  }
  doorbell_->Notify();
}

void Regions::Use(int device) {
  {
    MutexLock lock(mutex_);
    if (!devices_.insert(device).second) return;
  }
  publisher_.Do([&] { OwnTable(device); });
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
  if (process == own_process_) return publisher_.Do([&] { return OwnTable(device).entries; });
  MutexLock lock(mutex_);
  return TableLocked(device, process).entries;
}

void Regions::Watch() {
  NameThread("jaxring-regions");
  while (!stop_) {
    const uint32_t seen = doorbell_->Value();
    std::vector<Peer*> peers;  // never removed
    {
      MutexLock lock(mutex_);
      for (auto& peer : peers_) peers.push_back(peer.get());
    }
    for (Peer* peer : peers) MapNews(*peer);
    if (!stop_) doorbell_->Wait(seen, 100'000);
  }
}

// Only the watching thread maps, so nobody else changes a table's `tried` between the two locks. A region is confirmed
// after all devices have mapped it. A device that is used later is behind the others; who uses it first waits for a
// region that is listed later (Resolve), and so for all of these.
void Regions::MapNews(Peer& peer) {
  DirectoryPage& page = peer.directory->page();
  const uint32_t count = page.count.load(std::memory_order_acquire);
  if (count > kMaxRegions) return;
  std::set<int> devices;
  {
    MutexLock lock(mutex_);
    devices = devices_;
  }
  if (devices.empty()) return;
  for (int device : devices) {
    while (!stop_) {
      TableOf* table;
      {
        MutexLock lock(mutex_);
        table = &TableLocked(device, peer.process);
      }
      if (table->tried >= count) break;
      const uint32_t number = table->tried;
      uint64_t base = 0;
      std::string reason;
      try {
        base = MapOne(device, *table, number, page);
      } catch (const std::exception& error) {
        reason = error.what();
      }
      {
        MutexLock lock(mutex_);
        table->known[number] = base;
        table->tried = number + 1;
        if (!reason.empty()) Failed(peer, number, reason.c_str());
      }
      changed_.NotifyAll();
    }
  }
  MutexLock lock(mutex_);
  for (; !stop_ && peer.confirmed < count; ++peer.confirmed) {
    if (peer.failed.count(peer.confirmed) != 0) continue;
    peer.place->mappings[peer.confirmed].store(Mapping::kMapped, std::memory_order_release);
  }
}

void Regions::Failed(Peer& peer, uint32_t number, const char* reason) {
  if (peer.failed.empty()) {
    std::snprintf(peer.place->reason, sizeof peer.place->reason, "%s", reason);
    peer.place->reason_of.store(number, std::memory_order_release);
  }
  peer.failed.emplace(number, reason);
  peer.place->mappings[number].store(Mapping::kFailed, std::memory_order_release);
  ++failed_mappings_;
}

int Regions::Fetch(int process, uint32_t number) {
  DescriptorSource source;
  {
    MutexLock lock(mutex_);
    const auto found =
        std::find_if(peers_.begin(), peers_.end(), [&](const auto& peer) { return peer->process == process; });
    if (found == peers_.end()) throw std::runtime_error("process " + std::to_string(process) + " is not attached");
    source = (*found)->directory->page().descriptors;
  }
  return FetchDescriptor(source, number);
}

uint64_t Regions::MapOne(int device, TableOf& table, uint32_t number, const DirectoryPage& page) {
  const DirectoryRecord& record = page.records[number];
  const std::string uuid(record.device, strnlen(record.device, sizeof record.device));
  auto owner = ordinals_.find(uuid);
  // The device cannot reach this memory; the planner puts no such pair into one domain.
  if (owner == ordinals_.end() || !gpu_.CanAccess(device, owner->second)) return 0;
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
  mapped_bytes_ += record.bytes;
  return base;
}

char* Regions::Resolve(int device, int process, Location location, Deadline deadline) {
  if (location.region == 0) return reinterpret_cast<char*>(location.offset);
  if (location.region >= kMaxRegions)
    throw std::runtime_error("a peer names region " + std::to_string(location.region) + ", which is out of range");
  const auto region = static_cast<uint32_t>(location.region);
  if (process == own_process_) {
    return reinterpret_cast<char*>(publisher_.Do([&] { return own_base_.at(region); }) + location.offset);
  }
  MutexLock lock(mutex_);
  TableOf& table = TableLocked(device, process);
  while (table.tried <= region) {
    if (!changed_.WaitUntil(mutex_, deadline)) {
      throw std::runtime_error("device memory of process " + std::to_string(process) +
                               " was not mapped within the deadline");
    }
  }
  if (table.known[region] != 0) return reinterpret_cast<char*>(table.known[region] + location.offset);
  for (auto& peer : peers_) {
    const auto failed = peer->failed.find(region);
    if (peer->process != process || failed == peer->failed.end()) continue;
    throw std::runtime_error("process " + std::to_string(own_process_) + " cannot map device memory of process " +
                             std::to_string(process) + ": " + failed->second);
  }
  throw std::runtime_error("device " + std::to_string(device) + " does not reach the memory of process " +
                           std::to_string(process));
}

}  // namespace jaxring::cuda
