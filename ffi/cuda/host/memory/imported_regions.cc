#include "cuda/host/memory/imported_regions.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "base/thread_name.h"
#include "cuda/host/memory/descriptors.h"

namespace jaxring::cuda {
namespace {

// When a region that could not be mapped is tried again, each counted from the time before.
constexpr std::array kAgain = {std::chrono::seconds(1), std::chrono::seconds(10)};

}  // namespace

ImportedRegions::ImportedRegions(Gpu& gpu, int process) : gpu_(gpu), process_(process), doorbell_(Doorbell::Create()) {
  for (int device = 0; device < gpu_.devices.Count(); ++device) ordinals_[gpu_.devices.Info(device).uuid] = device;
  watcher_ = std::thread([this] { Watch(); });
}

ImportedRegions::~ImportedRegions() {
  stop_ = true;
  doorbell_->Notify();
  watcher_.join();
}

std::shared_ptr<Doorbell> ImportedRegions::Attach(int process, const std::string& directory_path,
                                                  const std::string& doorbell_path) {
  std::shared_ptr<Doorbell> theirs;
  {
    MutexLock lock(mutex_);
    for (auto& peer : peers_) {
      if (peer->process == process) return nullptr;
    }
    auto peer = std::make_unique<Peer>();
    peer->process = process;
    peer->directory = RegionDirectory::Open(directory_path);
    theirs = Doorbell::Open(doorbell_path);
    peer->place = peer->directory->Place(process_, true);
    if (peer->place == nullptr) throw std::runtime_error("more than 256 processes of this host share device memory");
    peers_.push_back(std::move(peer));
  }
  doorbell_->Notify();
  return theirs;
}

bool ImportedRegions::Use(int device) {
  {
    MutexLock lock(mutex_);
    if (!devices_.insert(device).second) return false;
  }
  doorbell_->Notify();
  return true;
}

ImportedRegions::PeerTable& ImportedRegions::TableOf(int device, int process) {
  return tables_.try_emplace({device, process}, gpu_.memory, device).first->second;
}

const uint64_t* ImportedRegions::Table(int device, int process) {
  MutexLock lock(mutex_);
  return TableOf(device, process).entries;
}

uint64_t ImportedRegions::Base(int device, int process, uint32_t region, Deadline deadline) {
  MutexLock lock(mutex_);
  PeerTable& table = TableOf(device, process);
  while (table.tried <= region) {
    if (!changed_.WaitUntil(mutex_, deadline)) {
      throw std::runtime_error("device memory of process " + std::to_string(process) +
                               " was not mapped within the deadline");
    }
  }
  if (table.known[region] != 0) return table.known[region];
  for (auto& peer : peers_) {
    const auto failed = peer->failed.find(region);
    if (peer->process != process || failed == peer->failed.end()) continue;
    throw std::runtime_error("process " + std::to_string(process_) + " cannot map device memory of process " +
                             std::to_string(process) + ": " + failed->second.reason);
  }
  throw std::runtime_error("device " + std::to_string(device) + " does not reach the memory of process " +
                           std::to_string(process));
}

void ImportedRegions::Watch() {
  NameThread("jaxring-regions");
  while (!stop_) {
    const uint32_t seen = doorbell_->Value();
    std::vector<Peer*> peers;  // never removed
    {
      MutexLock lock(mutex_);
      for (auto& peer : peers_) peers.push_back(peer.get());
    }
    for (Peer* peer : peers) {
      MapNews(*peer);
      MapFailed(*peer);
    }
    if (!stop_) doorbell_->Wait(seen, 100'000);
  }
}

// Only the watching thread maps, so nobody else changes a table's `tried` between the two locks. A region is confirmed
// after all devices have mapped it. A device that is used later is behind the others; who uses it first waits for a
// region that is listed later (Base), and so for all of these.
void ImportedRegions::MapNews(Peer& peer) {
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
      PeerTable* table;
      {
        MutexLock lock(mutex_);
        table = &TableOf(device, peer.process);
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

// What failed may pass: an owner that was too busy to send a descriptor, or too little memory. Until then its owner
// copies the data. A device that has not come to the region yet maps it with the news.
void ImportedRegions::MapFailed(Peer& peer) {
  const Deadline now = std::chrono::steady_clock::now();
  std::set<int> devices;
  std::vector<uint32_t> due;
  {
    MutexLock lock(mutex_);
    devices = devices_;
    for (const auto& [number, failure] : peer.failed) {
      if (failure.times < kAgain.size() && now >= failure.again) due.push_back(number);
    }
  }
  for (uint32_t number : due) {
    bool mapped = true;
    for (int device : devices) {
      PeerTable* table;
      {
        MutexLock lock(mutex_);
        table = &TableOf(device, peer.process);
        if (table->tried <= number || table->known[number] != 0) continue;
      }
      try {
        const uint64_t base = MapOne(device, *table, number, peer.directory->page());
        MutexLock lock(mutex_);
        table->known[number] = base;
      } catch (const std::exception&) {  // the first reason stays
        mapped = false;
      }
    }
    MutexLock lock(mutex_);
    Failure& failure = peer.failed.at(number);
    if (mapped) {
      peer.failed.erase(number);
      peer.place->mappings[number].store(Mapping::kMapped, std::memory_order_release);
    } else if (++failure.times < kAgain.size()) {
      failure.again = now + kAgain[failure.times];
    }
  }
}

uint64_t ImportedRegions::MapOne(int device, RegionTable& table, uint32_t number, const DirectoryPage& page) {
  const DirectoryRecord& record = page.records[number];
  const std::string uuid(record.device, strnlen(record.device, sizeof record.device));
  auto owner = ordinals_.find(uuid);
  // The device cannot reach this memory; the planner puts no such pair into one domain.
  if (owner == ordinals_.end() || !gpu_.devices.CanAccess(device, owner->second)) return 0;
  uint64_t base;
  if (record.sharing == Sharing::kDescriptor) {
    const int descriptor = FetchDescriptor(page.descriptors, number);
    try {
      base = reinterpret_cast<uint64_t>(gpu_.sharing.ImportDescriptor(device, descriptor, record.bytes));
    } catch (...) {
      close(descriptor);
      throw;
    }
    close(descriptor);
  } else {
    base = reinterpret_cast<uint64_t>(gpu_.sharing.Import(device, record.handle));
  }
  gpu_.memory.Copy(device, table.entries + number, &base, sizeof base);
  mapped_bytes_ += record.bytes;
  return base;
}

void ImportedRegions::Failed(Peer& peer, uint32_t number, const char* reason) {
  if (peer.failed.empty()) {
    std::snprintf(peer.place->reason, sizeof peer.place->reason, "%s", reason);
    peer.place->reason_of.store(number, std::memory_order_release);
  }
  peer.failed.emplace(number, Failure{reason, 0, std::chrono::steady_clock::now() + kAgain[0]});
  peer.place->mappings[number].store(Mapping::kFailed, std::memory_order_release);
  ++failed_mappings_;
}

int ImportedRegions::Fetch(int process, uint32_t number) {
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

}  // namespace jaxring::cuda
