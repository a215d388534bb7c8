// Who a communicator's ranks are: their processes, devices and memory domains, as seen by one of the processes.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cuda/device/tables.h"

namespace jaxring::cuda {

struct RankInfo {
  int process;
  int device;        // the number of its device in this process; -1: the rank is in another process
  int domain;        // ranks of one domain address each other's memory
  std::string name;  // "rank 3 (process 1 on host b, GPU 0)", for messages
};

struct WireShape {
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
};

// Equal in all processes except for RankInfo::device.
struct CommunicatorSpec {
  std::string name;
  std::vector<RankInfo> ranks;
  uint32_t lanes = 1;  // the most that any of its plans has
  std::array<WireShape, kProtocols> wires;
  uint64_t stage_bytes = 0;
  double timeout_s = 300;  // for setting it up
};

// Constant.
class RankGroup {
 public:
  RankGroup(int process, CommunicatorSpec spec);
  const CommunicatorSpec& spec() const { return spec_; }
  const RankInfo& operator[](int rank) const { return spec_.ranks[rank]; }
  int size() const { return static_cast<int>(spec_.ranks.size()); }
  int process() const { return process_; }
  bool local(int rank) const { return spec_.ranks[rank].process == process_; }
  void RequireLocal(int rank) const;  // throws std::runtime_error where `rank` is none of this process's
  bool one_process() const { return processes_.empty(); }
  const std::set<int>& processes() const { return processes_; }  // other processes that share memory with this one
  const std::set<int>& peers() const { return peers_; }          // all other processes
  std::vector<int> Members(int rank) const;                      // the other ranks of its domain
  // The other devices of this process whose kernels address the rank's buffers.
  std::vector<int> OtherDevices(int rank) const;
  // A number of its name.
  uint64_t hash() const { return hash_; }
  // The key under which processes report its failure to each other; its messages have other keys.
  uint64_t key() const { return ~hash_; }

 private:
  const int process_;
  const CommunicatorSpec spec_;
  const uint64_t hash_;
  std::set<int> processes_, peers_;
};

}  // namespace jaxring::cuda
