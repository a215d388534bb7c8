// Messages over a link while it moves: none of them may be lost, doubled or damaged, nor any byte that is written past
// their slots.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/transport/rdma/moved.h"

namespace jaxring::test {

// Messages of both rings, those of LL with bytes that are written directly, until it is stopped.
class Traffic {
 public:
  explicit Traffic(Moved& moved) : moved_(moved), link_(*moved.pair().send), from_(kBytes), to_(kBytes) {
    for (Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
      threads_.emplace_back([this, protocol] { Publish(protocol); });
      threads_.emplace_back([this, protocol] { Take(protocol); });
    }
  }
  // Returns how many messages there were.
  uint64_t Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    CHECK(!moved_.pair().send->end.closed && !moved_.pair().recv->end.closed);
    return counts_[0] + counts_[1];
  }

 private:
  // Half of the pieces are of memory that is registered after the link has moved.
  static constexpr uint64_t kRoom = 16, kMost = 3000, kBytes = 2 * kRoom * kMost;

  static int Index(Protocol protocol) { return protocol == Protocol::kSimple; }
  static uint32_t PieceBytes(uint64_t op) { return op % 5 == 0 ? 0 : static_cast<uint32_t>(op * 7919 % (kMost + 1)); }
  uint32_t Bytes(Protocol protocol, uint64_t op) const {
    const uint32_t most = link_.ring(protocol).memory().shape().payload_bytes;
    return op % 7 == 0 ? most : static_cast<uint32_t>(op * 997 % (most + 1));
  }

  struct Half {
    uint32_t key = 0, to_key = 0;
    bool known = false;
  };
  // Which half of the memory a message's piece is in, registered when it is first used.
  size_t HalfOf(uint64_t op) {
    const size_t half = moved_.moves() > 0 ? op % 2 : 0;
    Half& known = halves_[half];
    if (!known.known) {
      const size_t at = half * kBytes / 2;
      known.key = moved_.pair().send->direct.lock()->Register({from_.data() + at, kBytes / 2});
      known.to_key = moved_.pair().recv->direct.lock()->Register({to_.data() + at, kBytes / 2});
      known.known = true;
    }
    return half;
  }

  void Publish(Protocol protocol) {
    uint64_t op = 0;
    for (; !stop_; ++op) {
      if (protocol == Protocol::kLL) {
        PublishPiece(op);
      } else {
        Send(link_, protocol, op, Bytes(protocol, op));
      }
      // What is sent one by one is not behind anything.
      if (op % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(op % 20));
    }
    counts_[Index(protocol)] = op;
    done_[Index(protocol)] = true;
  }

  void PublishPiece(uint64_t op) {
    CHECK(Within(100, [&] { return read_ + kRoom > op; }));
    const size_t half = HalfOf(op);
    const size_t at = half * kBytes / 2 + op % kRoom * kMost;
    Fill(from_.data() + at, op, PieceBytes(op));
    half_of_[op % kRoom] = half;
    uint64_t position;
    RingSender& ring = link_.ll;
    CHECK(Within(100, [&] { return ring.Reserve(&position); }));
    const Half& keys = halves_[half];
    moved_.pair().send->direct.lock()->Attach(position, {from_.data() + at, keys.key, keys.to_key,
                                                         reinterpret_cast<uint64_t>(to_.data() + at), PieceBytes(op)});
    Fill(ring.payload(position), op, Bytes(Protocol::kLL, op));
    ring.Publish(position, {op, 1, 2, 3, 4}, {Bytes(Protocol::kLL, op), 77});
  }

  void Take(Protocol protocol) {
    const int index = Index(protocol);
    RecvLink& link = *moved_.pair().recv;
    for (uint64_t op = 0; !done_[index] || op < counts_[index]; ++op) {
      // The last message may be the one before: then none comes.
      if (!Within(100, [&] { return Has(link, protocol, op) || (done_[index] && op >= counts_[index]); })) {
        Fault("no message " + std::to_string(op), link.ring(protocol).memory(), op, link.end);
      }
      if (done_[index] && op >= counts_[index]) break;
      Receive(link, protocol, op, Bytes(protocol, op));
      if (protocol != Protocol::kLL) continue;
      char* const piece = to_.data() + half_of_[op % kRoom] * kBytes / 2 + op % kRoom * kMost;
      CheckPayload(link, link.ll.memory(), op, op, piece, PieceBytes(op));
      CHECK(std::all_of(piece + PieceBytes(op), piece + kMost, [](char c) { return c == 0; }));
      std::memset(piece, 0, kMost);
      read_ = op + 1;
    }
    // A message more would be one that has come twice.
    CHECK(!Has(link, protocol, counts_[index]));
  }

  static bool Has(RecvLink& link, Protocol protocol, uint64_t op) {
    const RingMemory& ring = link.ring(protocol).memory();
    for (uint32_t slot = 0; slot < ring.shape().slots; ++slot) {
      if (ring.header(slot).flag.load(std::memory_order_acquire) == op + 1) return true;
    }
    return false;
  }

  Moved& moved_;
  SendLink& link_;
  std::vector<char> from_, to_;
  std::array<Half, 2> halves_;
  std::array<std::atomic<size_t>, kRoom> half_of_{};
  std::atomic<uint64_t> read_{0};
  std::atomic<bool> stop_{false};
  std::array<std::atomic<bool>, 2> done_{};
  std::array<std::atomic<uint64_t>, 2> counts_{};
  std::vector<std::thread> threads_;
};

}  // namespace jaxring::test
