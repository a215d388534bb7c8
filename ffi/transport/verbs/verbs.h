// The verbs transport: carries a link's two rings to another host by RDMA, slot by slot.
//
// Both ends have rings of the same shape, and the message at a position of the sender's ring goes into the slot of the
// same position of the receiver's: header and payload in one write, all but the flag. The notice that follows names the
// position, and the receiving pump then sets the flag, which is what makes a slot readable; so nothing is assumed of
// the order in which a write's bytes arrive. The sender's slot is free when its write is complete. The receiver tells
// by notices how far its ring has been read (a credit), and the sender writes only into slots that are free there.
//
// Credits are sent when half of a ring was read, or as soon as anything was read and the sender has used all that it
// had: so they are few, and none is missing when the sender waits for one. Every notice stands for at least one
// position that its receiver has yet to hear of, so those under way never exceed the slots of both rings (40), which is
// less than a receive queue holds (kNotices).
//
// The connection over which the processes agreed stays open: its end says that the peer is gone, and over it each tells
// the other why it gives up.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "transport/core/busy_pollers.h"
#include "transport/core/link.h"
#include "transport/core/poller.h"
#include "transport/verbs/verbs_endpoint.h"

namespace jaxring {

class VerbsPump : public Poller::Handler, public BusyPollers::Source, public std::enable_shared_from_this<VerbsPump> {
 public:
  // `link` owns the memory that the endpoint has registered, and `end`.
  VerbsPump(std::shared_ptr<void> link, std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller, LinkEnd* end,
            Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
  ~VerbsPump() override;
  // Listens for completions and to the peer's word, from now on.
  void Start();
  // Completions are there.
  void OnEvents(uint32_t events) override;
  // Does what can be done now; any thread.
  void Pump();
  // The same for whoever waits for a message; whether anything was complete.
  bool Poll();
  void EnableEvents() override;
  // The peer said something over the connection, or is gone.
  void Hear();
  // Tells the peer that this process ends in good order.
  virtual void SayGoodbye();
  // Now and then: gives up where the port has been down for longer than a lost packet is sent again. Not every device
  // ends its queue pairs then; soft-RoCE goes on for ever.
  void CheckPort();

 protected:
  using Event = verbs::Endpoint::Event;
  // Both under the lock; false when the connection has failed.
  virtual bool Handle(const Event& event) = 0;
  virtual bool Advance() = 0;
  // Something was sent whose completion is not known.
  virtual bool Waiting() const = 0;
  // A message waits for a word of the peer's, which nobody looks for once its operation has ended here.
  virtual bool MustHear() const = 0;
  // Whether anything was complete.
  bool PumpLocked();
  void EnableEventsLocked();
  void End(const std::string& why, bool tell);
  // Reads what the peer said; true if its side of the connection has ended.
  bool Listen();
  std::string LastWord() const;
  bool Misbehaved();
  bool closed() const { return end_->closed.load(std::memory_order_acquire); }

 private:
  std::shared_ptr<void> link_;  // outlives the endpoint

 protected:
  std::unique_ptr<verbs::Endpoint> endpoint_;
  Notifier* own_doorbell_;
  std::mutex mutex_;

 private:
  const int fd_;
  Poller* poller_;
  LinkEnd* end_;
  OnEnd on_end_;
  BusyPollers* const busy_pollers_;
  bool armed_ = true;
  bool goodbye_ = false;
  std::string heard_;
  std::vector<Event> events_;
  std::chrono::steady_clock::time_point checked_{}, down_since_{};
};

class VerbsSendPump final : public VerbsPump, public DirectSend {
 public:
  VerbsSendPump(std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller,
                const std::shared_ptr<SendLink>& link, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
  // Waits for what has been sent to arrive, some seconds at most.
  void SayGoodbye() override;
  const std::string& device() const override { return endpoint_->device(); }
  uint32_t Register(const DirectRegion& region) override { return endpoint_->RegisterMore(region); }
  void Attach(uint64_t position, const DirectPiece& piece) override;

 private:
  struct Ring {
    Ring(RingMemory ring, Notifier* on_room) : memory(ring), reader(ring, on_room) {}
    RingMemory memory;
    RingReceiver reader;     // the pump empties the rings that the lanes fill
    uint64_t peer_head = 0;  // the receiver has read every position below
    uint64_t next = 0;       // the next position to be written
    bool held = false;       // it is claimed and waits for a credit
    Message message;
  };
  struct Sent {
    uint64_t id;
    Ring* ring;  // nullptr for a mark
    uint64_t position;
  };
  struct Queue {
    std::deque<Sent> sent;
    uint64_t next_id = 1;
    int unsignaled = 0;
  };
  bool Handle(const Event& event) override;
  bool Advance() override;
  bool Waiting() const override;
  bool MustHear() const override { return rings_[0].held || rings_[1].held; }
  bool Write(Ring& ring, uint32_t protocol);

  std::array<Ring, 2> rings_;
  // What the LL ring's messages take along, by slot. A slot's flag orders both sides' turns at its entry.
  std::vector<DirectPiece> pieces_;
  std::vector<Queue> queues_;
  size_t next_queue_ = 0;
  const int signal_every_;
};

class VerbsRecvPump final : public VerbsPump, public DirectMemory {
 public:
  VerbsRecvPump(std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller,
                const std::shared_ptr<RecvLink>& link, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
  const std::string& device() const override { return endpoint_->device(); }
  uint32_t Register(const DirectRegion& region) override { return endpoint_->RegisterMore(region); }

 private:
  struct Ring {
    RingMemory memory;
    uint64_t received = 0;  // messages so far
    uint64_t credited = 0;  // how far the sender knows the ring to be read
  };
  bool Handle(const Event& event) override;
  bool Advance() override;
  bool Waiting() const override { return credits_under_way_ > 0; }
  bool MustHear() const override { return false; }

  std::array<Ring, 2> rings_;
  int credits_under_way_ = 0;
};

// Links in the making, from the offer that is made to a peer to the link.
class VerbsJoin {
 public:
  VerbsJoin(uint32_t slot_bytes, Notifier* own_doorbell, BusyPollers* busy_pollers)
      : slot_bytes_(slot_bytes), own_doorbell_(own_doorbell), busy_pollers_(busy_pollers) {}
  // Each throws std::runtime_error with a sentence, and forgets the link then. See jaxring/world/links.py for the
  // order.
  std::string Offer(int peer, int channel, bool sending, verbs::EndpointOptions options);
  void Prepare(int peer, int channel, bool sending, const std::string& peer_offer);
  // Takes `fd`, also when it throws. One of the two links is set. Returns the connection in words.
  using Joined = JoinedLink;
  Joined Finish(Poller* poller, int peer, int channel, bool sending, int fd, double timeout_s, OnEnd on_end);
  // Has every link in service look at its port.
  void CheckPorts();
  void Forget(int peer, int channel, bool sending);

 private:
  struct Pending {
    std::shared_ptr<SendLink> send;
    std::shared_ptr<RecvLink> recv;
    std::unique_ptr<verbs::Endpoint> endpoint;  // after the links, whose memory it uses
  };
  using Key = std::tuple<int, int, bool>;
  std::shared_ptr<Pending> Find(const Key& key);

  uint32_t slot_bytes_;
  Notifier* own_doorbell_;
  BusyPollers* const busy_pollers_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<VerbsPump>> in_service_;
  std::map<Key, std::shared_ptr<Pending>> pending_;
};

}  // namespace jaxring
