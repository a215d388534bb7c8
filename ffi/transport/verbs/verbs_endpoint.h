// One end of a connection between two RDMA devices: queue pairs, one completion queue, the registered memory of a link.
//
// The sender writes into the receiver's memory and tells it so by a notice of 32 bits, which arrives after what was
// written before it on the same queue pair. On InfiniBand and RoCE a notice is immediate data; iWARP has none, so there
// it is a message of its own. Either takes one entry of the peer's receive queue; that there is always one is the
// business of the pumps, whose credits bound the notices under way by kNotices.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/core/direct_memory.h"
#include "transport/verbs/verbs_device.h"

namespace jaxring::verbs {

constexpr int kMaxQueuePairs = 16;
// Receive queue entries of a queue pair.
constexpr uint32_t kNotices = 64;
constexpr uint32_t kSendQueue = 192;

struct EndpointOptions {
  std::string device;
  int port = 1;
  int gid_index = -1;   // -1: addressed by LID (InfiniBand), or by IP (iWARP)
  std::string address;  // iWARP: the IP address of the device's interface
  int queue_pairs = 1;
  int timeout = 20;  // a packet's: 4.096 us x 2^timeout
  int retry_count = 7;
};

enum class Layer : uint8_t { kInfiniband = 0, kRoce = 1, kIwarp = 2 };

// What one end tells the other, in the byte order of x86-64 and arm64.
struct Offer {
  uint32_t version;
  Layer layer;
  uint8_t mtu;
  uint8_t queue_pairs;
  uint8_t has_gid;
  char gid_type[16];
  Gid gid;
  uint64_t memory;  // where the registered memory begins, and its size
  uint64_t bytes;
  uint64_t token;  // iWARP: who connects shows it
  uint32_t rkey;
  uint32_t psn;
  uint32_t qpn[kMaxQueuePairs];
  uint16_t lid;
  uint16_t cm_port;
  char cm_address[48];
};
std::string ToHex(const Offer& offer);
// Throws std::runtime_error for what is no offer.
Offer FromHex(const std::string& text);

class CmConnector;

class Endpoint {
 public:
  enum class Role { kSender, kReceiver };
  struct Event {
    bool notice;  // a notice came; otherwise a signaled write is complete
    int queue_pair;
    uint64_t value;  // the notice, or the write's id
  };

  // Registers `memory`, which must outlive the endpoint. Throws std::runtime_error with a sentence.
  Endpoint(EndpointOptions options, Role role, char* memory, size_t bytes);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;

  const Offer& offer() const { return offer_; }
  // Knows the peer from now on, and can receive from it except by iWARP. Throws std::runtime_error.
  void Prepare(const Offer& peer);
  // Can send and receive; blocks for iWARP, `timeout_s` at most. Throws std::runtime_error.
  void Finish(double timeout_s);

  // More memory, which must outlive the endpoint; returns the key by which the sender's end reads it, or the peer
  // writes to the receiver's. Any thread. Throws std::runtime_error.
  uint32_t RegisterMore(const DirectRegion& region);
  const std::string& device() const { return options_.device; }

  // The functions below are called under the pump's lock. They return false when the connection has failed.
  // Writes to the same place of the peer's memory, then a notice. The memory stays as it is until a later signaled
  // write of the same queue pair is complete.
  bool Write(int queue_pair, const char* data, uint32_t bytes, uint32_t notice, uint64_t id, bool signaled);
  // Writes bytes of RegisterMore's memory, which stay as they are until the peer says that it has read them (see
  // DirectSend): a later completion does not say on every device that they have been sent.
  bool WriteDirect(int queue_pair, const DirectPiece& piece);
  // Only a notice, signaled.
  bool Notify(int queue_pair, uint32_t notice);
  // A signaled write of nothing: when it is complete, so is what went before it on the queue pair.
  bool Mark(int queue_pair, uint64_t id);
  // Appends what happened.
  bool Poll(std::vector<Event>* events);
  // Has fd() become readable at the next completion. Poll once more afterwards: what came before counts not.
  bool Arm();
  // Has fd() become unreadable, without asking for another event.
  void TakeEvents();
  int fd() const { return channel_->fd; }
  int queue_pairs() const { return options_.queue_pairs; }
  // Why it failed: device, GID, queue pair, status and what to do.
  const std::string& error() const { return error_; }
  void Fail(const std::string& what);
  // The port is up; how long a lost packet is sent again; and failing because it is down for longer.
  bool PortActive() const;
  std::chrono::microseconds Patience() const;
  void FailForPort();
  // It failed because the connection was taken down, and not by an error of its own.
  bool closed_by_peer() const { return closed_by_peer_; }
  // Both ends in a few words, for the log.
  std::string Describe() const;

 private:
  template <class T>
  using Handle = std::unique_ptr<T, int (*)(T*)>;
  friend class CmConnector;
  void QueryPort();
  void Register(char* memory, size_t bytes);
  // The receiver's memory is written by the peer, the sender's only read by the device.
  int AccessOfMemory() const {
    return role_ == Role::kReceiver ? kAccessLocalWrite | kAccessRemoteWrite : kAccessLocalWrite;
  }
  QpInit Init() const;
  void CreateQueuePairs();
  void PostReceives(int queue_pair);
  bool PostReceive(int queue_pair, uint32_t slot);
  bool Post(int queue_pair, SendWork* work);
  void PrepareNotice(SendWork* work, Sge* sge, uint32_t notice);
  void Connect(int queue_pair);
  void CheckPeer(const Offer& peer) const;
  std::string Place(int queue_pair) const;
  std::string StatusText(const Completion& completion) const;
  [[noreturn]] void Throw(const std::string& what, int error) const;

  EndpointOptions options_;
  const Role role_;
  const Api* api_;
  // In the order in which they are made: each goes before those above it.
  std::unique_ptr<OpenDevice> device_;  // not for iWARP, where the context is the connection manager's
  std::unique_ptr<CmConnector> cm_;
  Context* context_ = nullptr;
  Handle<Pd> pd_;
  // iWARP's notices: what was received per queue pair and entry, then what is being sent.
  std::unique_ptr<std::array<uint32_t, (kMaxQueuePairs + 1) * kNotices>> notice_buffer_;
  Handle<Mr> memory_, notices_;
  std::mutex more_mutex_;
  std::vector<Handle<Mr>> more_;
  Handle<CompletionChannel> channel_;
  Handle<Cq> cq_;
  std::vector<Handle<Qp>> owned_qps_;  // not for iWARP
  std::vector<Qp*> qps_;
  uint32_t max_inline_ = 0;
  uint32_t next_notice_ = 0;
  Offer offer_{}, peer_{};
  std::string error_;
  bool closed_by_peer_ = false;
};

}  // namespace jaxring::verbs
