// One end of a connection between two RDMA devices: queue pairs, one completion queue, the registered memory of a link.
//
// The sender writes into the receiver's memory and then sends a notice of 32 bits, which arrives after the writes
// before it on the same queue pair. On InfiniBand and RoCE a notice is immediate data. iWARP has none, so there a
// notice is a send of its own. Either takes one entry of the peer's receive queue. The pumps' credits keep the notices
// in flight below kNotices, so that there always is one.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/core/direct_memory.h"
#include "transport/verbs/endpoint/verbs_memory.h"
#include "transport/verbs/endpoint/verbs_offer.h"
#include "transport/verbs/endpoint/verbs_port.h"

namespace jaxring::verbs {

constexpr uint32_t kSendQueue = 192;

class CmConnector;

class Endpoint {
 public:
  enum class Role { kSender, kReceiver };
  struct Event {
    bool notice;  // a notice arrived; false: a signaled write is complete
    int queue_pair;
    uint64_t value;  // the notice, or the write's id
  };

  struct Failure {
    std::string error;            // device, GID, queue pair, status, and what to do; "" while the connection works
    bool closed_by_peer = false;  // the peer has closed the connection: it is no error at this end
    bool unreachable = false;     // the peer's port or this one's does not answer. Another port may.
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
  uint32_t RegisterMore(const DirectRegion& region) { return memory_->Add(region); }
  const Port& port() const { return port_; }

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
  int queue_pairs() const { return port_.options().queue_pairs; }
  const Failure& failure() const { return failure_; }
  // The first failure counts.
  void Fail(const std::string& what);
  // The port has been down for longer than the device sends a lost packet again.
  void FailForPort();
  // Both ends in a few words, for logs.
  std::string Describe() const;

 private:
  friend class CmConnector;
  QpInit Init() const;
  void MakeCompletionQueue();
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
  // A queue pair in words.
  std::string Place(int queue_pair) const;
  std::string StatusText(const Completion& completion) const;

  // In the order of construction, so that each is destroyed before those above it.
  Port port_;
  const Role role_;
  Offer offer_{}, peer_{};
  std::unique_ptr<CmConnector> cm_;         // iWARP's
  std::optional<Memory> memory_;            // set by the constructor
  std::unique_ptr<NoticeBuffers> notices_;  // iWARP's
  Handle<CompletionChannel> channel_;
  Handle<Cq> cq_;
  std::vector<Handle<Qp>> owned_qps_;  // not for iWARP
  std::vector<Qp*> qps_;
  uint32_t max_inline_ = 0;
  int receives_ = 0;  // posted, and not complete
  Failure failure_;
  bool stopped_ = false;
};

}  // namespace jaxring::verbs
