// One end of a connection between two RDMA devices: queue pairs, one completion queue, the registered memory of a link.
//
// The sender writes into the receiver's memory and then sends a notice of 32 bits, which arrives after the writes
// before it on the same queue pair. On InfiniBand and RoCE a notice is immediate data. iWARP has none, so there a
// notice is a send of its own. Either takes one entry of the peer's receive queue. The pumps' credits keep the notices
// in flight below kNotices, so that there always is one.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
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
  int timeout = 20;  // until a packet is resent: 4.096 us x 2^timeout
  int retry_count = 7;
};

enum class Layer : uint8_t { kInfiniband = 0, kRoce = 1, kIwarp = 2 };

// What the two ends exchange before they connect, in the byte order of x86-64 and arm64.
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
  uint64_t token;  // iWARP: the dialling peer must send it
  uint32_t rkey;
  uint32_t psn;
  uint32_t qpn[kMaxQueuePairs];
  uint16_t lid;
  uint16_t cm_port;
  char cm_address[48];
};
std::string ToHex(const Offer& offer);
// Throws std::runtime_error if the text is not an offer.
Offer FromHex(const std::string& text);

class CmConnector;

class Endpoint {
 public:
  enum class Role { kSender, kReceiver };
  struct Event {
    bool notice;  // a notice arrived; false: a signaled write is complete
    int queue_pair;
    uint64_t value;  // the notice, or the write's id
  };

  // Registers `memory`, which must outlive the endpoint. Throws std::runtime_error.
  Endpoint(EndpointOptions options, Role role, char* memory, size_t bytes);
  // An endpoint of the same role and memory as this one, on another port. Throws std::runtime_error.
  std::unique_ptr<Endpoint> Another(EndpointOptions options) const;
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;

  const Offer& offer() const { return offer_; }
  // Takes the peer's offer. Afterwards the endpoint can receive, except by iWARP. Throws std::runtime_error.
  void Prepare(const Offer& peer);
  // Connects. Afterwards the endpoint can send and receive. Blocks for iWARP, at most `timeout_s`. Throws
  // std::runtime_error.
  void Finish(double timeout_s);

  // Registers more memory, which must outlive the endpoint. Returns the key by which this device reads it (sender) or
  // the peer writes to it (receiver). Any thread may call it. Throws std::runtime_error.
  uint32_t RegisterMore(const DirectRegion& region);
  const std::string& device() const { return options_.device; }

  // The functions below are called under the pump's lock. They return false when the connection has failed.
  // Writes to the same offset of the peer's memory, then sends a notice. The caller must not change the memory until a
  // later signaled write of the same queue pair is complete.
  bool Write(int queue_pair, const char* data, uint32_t bytes, uint32_t notice, uint64_t id, bool signaled);
  // Writes bytes of memory that RegisterMore has registered. The caller must not change them until the peer says that
  // it has read them (see DirectSend): not on every device does a later completion mean that they have been sent.
  bool WriteDirect(int queue_pair, const DirectPiece& piece);
  // Sends a signaled notice alone.
  bool Notify(int queue_pair, uint32_t notice);
  // Posts a signaled empty write. When it is complete, so are the earlier requests of the queue pair.
  bool Mark(int queue_pair, uint64_t id);
  // Appends the events since the last call.
  bool Poll(std::vector<Event>* events);
  // Ends the queue pairs at this end: nothing arrives any more. Appends the events of what had arrived before, which it
  // waits for, `limit` at most.
  void Stop(std::vector<Event>* events, std::chrono::milliseconds limit);
  // Makes fd() readable at the next completion. Poll must be called once more afterwards, since completions before this
  // call do not make it readable.
  bool Arm();
  // Takes the events that make fd() readable, and requests no other.
  void TakeEvents();
  int fd() const { return channel_->fd; }
  int queue_pairs() const { return options_.queue_pairs; }
  // Why the connection failed: device, GID, queue pair, status, and what to do.
  const std::string& error() const { return error_; }
  void Fail(const std::string& what);
  // Whether the port is up, for how long the device resends a lost packet, and how to fail the connection when the port
  // has been down for longer.
  bool PortActive() const;
  std::chrono::microseconds Patience() const;
  void FailForPort();
  // Whether the connection failed because the peer has closed it, and not by an error at this end.
  bool closed_by_peer() const { return closed_by_peer_; }
  // Whether it failed since the peer's port or this one's does not answer. Another port may.
  bool unreachable() const { return unreachable_; }
  // Both ends in a few words, for logs.
  std::string Describe() const;

 private:
  template <class T>
  using Handle = std::unique_ptr<T, int (*)(T*)>;
  friend class CmConnector;
  void QueryPort();
  void Register(char* memory, size_t bytes);
  // The peer writes the receiver's memory; the device only reads the sender's.
  int AccessOfMemory() const {
    return role_ == Role::kReceiver ? kAccessLocalWrite | kAccessRemoteWrite : kAccessLocalWrite;
  }
  QpInit Init() const;
  void CreateQueuePairs();
  void PostReceives(int queue_pair);
  bool PostReceive(int queue_pair, uint32_t slot);
  // Takes some completions, if there are any. False if there are none.
  bool TakeCompletions(std::vector<Event>* events);
  void Take(const Completion& completion, std::vector<Event>* events);
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
  // In the order of construction, so that each is destroyed before those above it.
  std::unique_ptr<OpenDevice> device_;  // not for iWARP, where the context is the connection manager's
  std::unique_ptr<CmConnector> cm_;
  Context* context_ = nullptr;
  Handle<Pd> pd_;
  // Buffers of iWARP's notices: the received ones by queue pair and entry, then the ones being sent.
  std::unique_ptr<std::array<uint32_t, (kMaxQueuePairs + 1) * kNotices>> notice_buffer_;
  Handle<Mr> memory_, notices_;
  Mutex more_mutex_;
  std::vector<Handle<Mr>> more_ JAXRING_GUARDED_BY(more_mutex_);
  Handle<CompletionChannel> channel_;
  Handle<Cq> cq_;
  std::vector<Handle<Qp>> owned_qps_;  // not for iWARP
  std::vector<Qp*> qps_;
  uint32_t max_inline_ = 0;
  uint32_t next_notice_ = 0;
  int receives_ = 0;  // posted, and not complete
  Offer offer_{}, peer_{};
  std::string error_;
  bool closed_by_peer_ = false, unreachable_ = false, stopped_ = false;
};

}  // namespace jaxring::verbs
