// Ranks of the CUDA engine: the memory and the records that their hosts would set up.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/device/tables.h"
#include "tests/support/check.h"

namespace jaxring::test {

// Zeroed memory at a multiple of 128 bytes. Its destructor checks the guard bytes on both sides.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_((bytes + 127) / 128 * 128) {
    CHECK(posix_memalign(&memory_, 128, bytes_ + 2 * kGuard) == 0);
    std::memset(memory_, 0x5A, bytes_ + 2 * kGuard);
    std::memset(data(), 0, bytes_);
  }
  ~Memory() {
    for (size_t i = 0; i < kGuard; ++i) {
      CHECK(static_cast<char*>(memory_)[i] == 0x5A);
      CHECK(data()[bytes_ + i] == 0x5A);
    }
    std::free(memory_);
  }
  Memory(const Memory&) = delete;
  char* data() const { return static_cast<char*>(memory_) + kGuard; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }

 private:
  static constexpr size_t kGuard = 128;
  size_t bytes_;
  void* memory_ = nullptr;
};

struct ClusterShape {
  int ranks = 2;
  uint32_t lanes = 1;
  std::vector<int32_t> placement;
  cuda::Protocol protocol = cuda::Protocol::kSimple;
  uint32_t slots = 4;
  uint64_t slot_bytes = 0;
  uint64_t stage_bytes = 0;
};

// A communicator: connections between all pairs of ranks, and epoch barriers between the ranks of a domain. Many
// launches may use it, one after another.
class Cluster {
 public:
  explicit Cluster(ClusterShape shape) : shape_(std::move(shape)), ranks_(shape_.ranks) {
    CHECK(shape_.slots <= 16);
    for (int r = 0; r < shape_.ranks; ++r) Allocate(r);
    for (int from = 0; from < shape_.ranks; ++from) {
      for (int to = 0; to < shape_.ranks; ++to) Connect(from, to);
    }
  }

  const ClusterShape& shape() const { return shape_; }
  uint32_t* abort() { return &abort_; }
  cuda::Status& status(int rank) { return *ranks_[rank].status.as<cuda::Status>(); }
  uint64_t epoch(int rank, uint32_t lane) { return ranks_[rank].epochs.as<uint64_t>()[2 * lane]; }
  cuda::Connection& connection(int rank, uint32_t lane, int peer) {
    return ranks_[rank].connections.as<cuda::Connection>()[lane * shape_.ranks + peer];
  }
  // The barrier that `peer` writes and `rank` reads.
  const cuda::EpochBarrier& barrier(int rank, uint32_t lane, int peer) {
    return ranks_[rank].barriers.as<cuda::EpochBarrier>()[peer * shape_.lanes + lane];
  }
  // Sets every connection's counters as if `number` messages had gone each way already.
  void StartAt(uint64_t number) {
    for (auto& rank : ranks_) {
      for (uint32_t i = 0; i < shape_.lanes * shape_.ranks; ++i) {
        cuda::Connection& connection = rank.connections.as<cuda::Connection>()[i];
        connection.sent = connection.received = number;
        *rank.credit(i) = number;
        std::fill_n(rank.arrived(i), shape_.slots, number);
      }
    }
  }

  // The same for launches of one-shot all-reduces.
  void StartOneShotsAt(uint64_t number) {
    for (auto& rank : ranks_) {
      for (uint32_t lane = 0; lane < shape_.lanes; ++lane) rank.epochs.as<uint64_t>()[2 * lane + 1] = number;
    }
  }

  // The other ranks of a rank's domain, in order.
  std::vector<int> Members(int rank) const {
    std::vector<int> members;
    for (int r = 0; r < shape_.ranks; ++r) {
      if (r != rank && shape_.placement[r] == shape_.placement[rank]) members.push_back(r);
    }
    return members;
  }

  // The arguments that do not depend on the operation.
  cuda::Args Common(int rank, const char* in, char* out, bool memory) {
    Rank& self = ranks_[rank];
    cuda::Args args{};
    args.group.connections = self.connections.as<cuda::Connection>();
    args.group.members = self.members.as<cuda::Member>();
    args.group.member_count = memory ? Members(rank).size() : 0;
    args.group.epochs = self.epochs.as<uint64_t>();
    args.buffers.in = in;
    args.buffers.out = out;
    args.buffers.in_region = args.buffers.out_region = 1;
    args.buffers.in_offset = reinterpret_cast<uint64_t>(in) - kBase;
    args.buffers.out_offset = reinterpret_cast<uint64_t>(out) - kBase;
    args.failure.timeout_ns = 200'000'000;
    args.group.slot_bytes = shape_.slot_bytes;
    args.group.stage_bytes = shape_.stage_bytes;
    args.failure.abort = &abort_;
    args.failure.status = self.status.as<cuda::Status>();
    args.group.slots = shape_.slots;
    args.group.connections_per_lane = shape_.ranks;
    args.group.epoch_lanes = shape_.lanes;
    args.group.rank = rank;
    args.group.ranks = shape_.ranks;
    args.call.protocol = shape_.protocol;
    return args;
  }

 private:
  static constexpr uint64_t kBase = 4096;  // any number serves: a buffer's address is a region's base and an offset

  struct Rank {
    explicit Rank(const ClusterShape& s = {})
        : connections(sizeof(cuda::Connection) * s.lanes * s.ranks),
          counters(256 * s.lanes * s.ranks),
          slots(s.slot_bytes * s.slots * s.lanes * s.ranks),
          barriers(sizeof(cuda::EpochBarrier) * s.lanes * s.ranks),
          stages(2 * s.stage_bytes * s.ranks),
          members(sizeof(cuda::Member) * s.ranks),
          epochs(16 * s.lanes),
          status(sizeof(cuda::Status)),
          regions(16) {}
    // A line of 128 bytes each.
    uint64_t* credit(uint32_t i) const { return counters.as<uint64_t>() + 32 * i; }
    uint64_t* arrived(uint32_t i) const { return counters.as<uint64_t>() + 32 * i + 16; }
    Memory connections, counters, slots, barriers, stages, members, epochs, status, regions;
  };
  class Ranks {
   public:
    explicit Ranks(int n) : ranks_(n) {}
    Rank& operator[](int r) { return *ranks_[r]; }
    void Set(int r, std::unique_ptr<Rank> rank) { ranks_[r] = std::move(rank); }
    struct Iterator {
      std::vector<std::unique_ptr<Rank>>::iterator at;
      Rank& operator*() const { return **at; }
      Iterator& operator++() {
        ++at;
        return *this;
      }
      bool operator!=(const Iterator& o) const { return at != o.at; }
    };
    Iterator begin() { return {ranks_.begin()}; }
    Iterator end() { return {ranks_.end()}; }

   private:
    std::vector<std::unique_ptr<Rank>> ranks_;
  };

  void Allocate(int r) {
    ranks_.Set(r, std::make_unique<Rank>(shape_));
    ranks_[r].regions.as<uint64_t>()[1] = kBase;
  }
  // Makes both ends of the connection from one rank to another, and `from`'s entry for `to` if they share a domain.
  void Connect(int from, int to) {
    const size_t area = shape_.slot_bytes * shape_.slots;
    for (uint32_t lane = 0; lane < shape_.lanes; ++lane) {
      const uint32_t at_sender = lane * shape_.ranks + to, at_receiver = lane * shape_.ranks + from;
      Rank &sender = ranks_[from], &receiver = ranks_[to];
      cuda::Connection& send = sender.connections.as<cuda::Connection>()[at_sender];
      cuda::Connection& recv = receiver.connections.as<cuda::Connection>()[at_receiver];
      send.send_slots = receiver.slots.data() + at_receiver * area;
      recv.recv_slots = send.send_slots;
      if (shape_.protocol == cuda::Protocol::kSimple) {
        send.tail = receiver.arrived(at_receiver);
        recv.arrived = send.tail;
      }
      recv.give = sender.credit(at_sender);
      send.credit = recv.give;
      send.peer = to;
    }
    const std::vector<int> members = Members(from);
    for (size_t m = 0; m < members.size(); ++m) {
      if (members[m] != to) continue;
      // The record that `to` writes for `from` is in `from`'s memory at the index `to`, and the other way round.
      cuda::Member& member = ranks_[from].members.as<cuda::Member>()[m];
      member.theirs = ranks_[to].barriers.as<cuda::EpochBarrier>() + from * shape_.lanes;
      member.ours = ranks_[from].barriers.as<cuda::EpochBarrier>() + to * shape_.lanes;
      member.stage_theirs = ranks_[to].stages.data() + from * 2 * shape_.stage_bytes;
      member.stage_ours = ranks_[from].stages.data() + to * 2 * shape_.stage_bytes;
      member.regions = ranks_[from].regions.as<uint64_t>();
      member.rank = to;
    }
  }

  ClusterShape shape_;
  Ranks ranks_;
  uint32_t abort_ = 0;
};

}  // namespace jaxring::test
