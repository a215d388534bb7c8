// The verbs transport: carries a link's two rings to another host by RDMA, slot by slot.
//
// Both ends have rings of the same shape. The message at a position of the sender's ring goes into the slot at the same
// position of the receiver's ring: one RDMA write for header and payload, without the flag. The notice that follows
// names the position, and the receiving pump then sets the flag, which makes the slot readable. So the order in which
// the bytes of a write arrive does not matter. The sender's slot is free when its write is complete. By notices in the
// other direction (credits) the receiver reports how far its ring has been read, and the sender writes only into free
// slots.
//
// The receiver sends a credit when half of a ring was read, or as soon as anything was read and the sender has used all
// of its credits. So credits are few, and one is sent whenever the sender waits for it. Every notice stands for at
// least one position that its receiver does not know of yet, so at most as many are in flight as both rings have slots
// (40), which is less than a receive queue holds (kNotices).
//
// The control connection over which the processes agreed on the link stays open. Its end means that the peer is gone,
// and each end reports over it why it closes the link.
//
// On InfiniBand and RoCE, where both processes have several ports between them, a link whose ports fail is suspended
// and goes on over others (verbs_mover.h). The receiver first ends its queue pairs and takes what had arrived
// before, so that nothing arrives any more, and then says which positions it has. The sender writes the others again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "transport/core/busy_pollers.h"
#include "transport/core/link.h"
#include "transport/core/movable.h"
#include "transport/core/poller.h"
#include "transport/core/trickle.h"
#include "transport/verbs/endpoint/verbs_endpoint.h"
#include "transport/verbs/verbs_control.h"
#include "transport/verbs/verbs_handover.h"
#include "transport/verbs/verbs_regions.h"
#include "transport/verbs/verbs_watch.h"

namespace jaxring {

class VerbsMover;

// What both ends of a link share: completions, the control connection, and the end of the link. How the link goes on
// over other ports is VerbsMover's, which uses the pump's members under its mutex.
class VerbsPump : public Poller::Handler, public BusyPollers::Source, public std::enable_shared_from_this<VerbsPump> {
 public:
  // `link` owns `end` and the memory that the endpoint has registered.
  VerbsPump(std::shared_ptr<void> link, std::unique_ptr<verbs::Endpoint> endpoint, Descriptor socket, Poller* poller,
            LinkEnd* end, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
  ~VerbsPump() override;
  // Starts to handle completions and what the peer sends on the control connection.
  void Start();
  // Called when there are completions.
  void OnEvents(uint32_t events) override;
  // Makes all progress that is possible now. Any thread may call it.
  void Pump();
  // The same, on a thread that waits for a message. Returns whether anything was complete.
  bool Poll();
  void EnableEvents() override;
  // Called when the peer has sent something on the control connection, or has closed it.
  void OnControlReadable();
  // Tells the peer that this process ends in good order.
  virtual void SayGoodbye();
  // Called regularly: closes the link if the port has been down for longer than the device resends a lost packet. Not
  // every device ends its queue pairs then; soft-RoCE resends for ever.
  void CheckPort();
  // The same link, for those who have it go on over other ports; null where it cannot: iWARP's completions say nothing
  // about what has arrived, so nobody could say what is to be sent again.
  std::shared_ptr<MovableLink> movable();

 protected:
  using Event = verbs::Endpoint::Event;
  using Time = Movable::Time;
  // Both are called under the lock and return false when the connection has failed.
  virtual bool Handle(const Event& event) JAXRING_REQUIRES(mutex_) = 0;
  virtual bool Advance() JAXRING_REQUIRES(mutex_) = 0;
  // Whether something was sent and has not completed.
  virtual bool Waiting() const JAXRING_REQUIRES(mutex_) = 0;
  // The peer has said goodbye, with these words.
  virtual void OnGoodbye(const std::string&) JAXRING_REQUIRES(mutex_) {}
  // Whether everything has arrived that the peer had sent when it said goodbye.
  virtual bool AllHere() const JAXRING_REQUIRES(mutex_) { return true; }
  // Whether the peer's device is to acknowledge something by itself, so that its silence means that it cannot be
  // reached. `ask`: has it acknowledge something where nothing is under way. False if a request failed.
  virtual bool Awaits(bool /*ask*/, bool* awaits) JAXRING_REQUIRES(mutex_) {
    *awaits = false;
    return true;
  }
  // As of Movable.
  virtual bool IsTrickling(Time /*now*/) JAXRING_REQUIRES(mutex_) { return false; }
  // Goes on over the new endpoint, where memory has these keys. See MovableLink::Switch; throws std::runtime_error
  // where the peer's words make no sense.
  virtual std::string Renew(const std::string& received, const verbs::Keys& keys) JAXRING_REQUIRES(mutex_) = 0;
  virtual bool sends() const = 0;
  // Whether a message waits for a credit. No thread polls for the credit once the message's operation has ended here.
  virtual bool WaitsForCredit() const JAXRING_REQUIRES(mutex_) = 0;
  // Returns whether anything was complete.
  bool PumpLocked() JAXRING_REQUIRES(mutex_);
  void EnableEventsLocked() JAXRING_REQUIRES(mutex_);
  // `ending`: unless the peer has said goodbye.
  void End(const std::string& why, bool tell, Ending ending = Ending::kNoGoodbye) JAXRING_REQUIRES(mutex_);
  // Reads the control connection. Returns true if it has ended.
  bool Listen() JAXRING_REQUIRES(mutex_);
  void Act(const VerbsControl::Received& received) JAXRING_REQUIRES(mutex_);
  // Has the poller say when there is something to be read.
  void WatchControl() JAXRING_REQUIRES(mutex_);
  // Suspends the link until it goes on over other ports.
  void Lose() JAXRING_REQUIRES(mutex_);
  bool lost() const { return suspended_at_.load() != Time{}; }
  // After a goodbye: completes the link when everything is here, and ends it if the peer has closed the connection.
  void CompleteLocked() JAXRING_REQUIRES(mutex_);
  bool Misbehaved() JAXRING_REQUIRES(mutex_);
  bool closed() const { return end_->closed.load(std::memory_order_acquire); }
  VerbsMover& mover() { return *mover_; }
  const VerbsMover& mover() const { return *mover_; }

 private:
  friend class VerbsMover;
  std::shared_ptr<void> link_;  // outlives the endpoint

 protected:
  mutable Mutex mutex_;
  std::shared_ptr<verbs::Endpoint> endpoint_ JAXRING_GUARDED_BY(mutex_);
  VerbsControl control_ JAXRING_GUARDED_BY(mutex_);
  VerbsHandover handover_ JAXRING_GUARDED_BY(mutex_);
  Notifier* own_doorbell_;

 private:
  Poller* poller_;
  LinkEnd* end_;
  OnEnd on_end_;
  BusyPollers* const busy_pollers_;
  bool armed_ JAXRING_GUARDED_BY(mutex_) = true;
  std::vector<Event> events_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<bool> movable_{false};
  std::atomic<Time> suspended_at_{Time{}};
  VerbsWatch watch_ JAXRING_GUARDED_BY(mutex_);
  Time checked_ JAXRING_GUARDED_BY(mutex_){};
  Time down_since_ JAXRING_GUARDED_BY(mutex_){};
  const std::unique_ptr<VerbsMover> mover_;
};

class VerbsSendPump final : public VerbsPump, public DirectSend {
 public:
  VerbsSendPump(std::unique_ptr<verbs::Endpoint> endpoint, Descriptor socket, Poller* poller,
                const std::shared_ptr<SendLink>& link, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
  // Waits until all messages have arrived, for some seconds at most.
  void SayGoodbye() override;
  const std::string& device() const override;
  uint32_t Register(const DirectRegion& region) override;
  void Attach(uint64_t position, const DirectPiece& piece) override;

 private:
  // What may have to be written again.
  struct Written {
    uint32_t bytes = 0;
    DirectPiece piece{};
  };
  struct Ring {
    Ring(RingMemory ring, Notifier* on_room) : memory(ring), reader(ring, on_room), written(ring.shape().slots) {}
    RingMemory memory;
    RingReceiver reader;     // the pump empties the rings that the lanes fill
    uint64_t peer_head = 0;  // the receiver has read every position below
    uint64_t next = 0;       // the next position to be written
    bool held = false;       // the next message is claimed and waits for a credit
    Message message;
    std::vector<Written> written;  // by slot
  };
  struct Sent {
    uint64_t id;
    Ring* ring;  // nullptr for an empty write
    uint64_t position;
  };
  struct Queue {
    std::deque<Sent> sent;
    uint64_t next_id = 1;
    int unsignaled = 0;
    uint64_t asked = 0, asked_before = 0;  // the last request that asks for its completion; as of the last look
  };
  bool Handle(const Event& event) override JAXRING_REQUIRES(mutex_);
  bool Advance() override JAXRING_REQUIRES(mutex_);
  bool Waiting() const override JAXRING_REQUIRES(mutex_);
  bool WaitsForCredit() const override JAXRING_REQUIRES(mutex_) { return rings_[0].held || rings_[1].held; }
  bool Awaits(bool ask, bool* awaits) override JAXRING_REQUIRES(mutex_);
  bool IsTrickling(Time now) override JAXRING_REQUIRES(mutex_);
  std::string Renew(const std::string& received, const verbs::Keys& keys) override JAXRING_REQUIRES(mutex_);
  bool sends() const override { return true; }
  bool Write(Ring& ring, uint32_t protocol, uint64_t position) JAXRING_REQUIRES(mutex_);
  static int64_t BytesOf(const Sent& sent);
  // Asks for the completion of what was written without.
  bool Mark(bool also_idle) JAXRING_REQUIRES(mutex_);

  std::array<Ring, 2> rings_ JAXRING_GUARDED_BY(mutex_);
  // The direct writes that go with the LL ring's messages, by slot. A slot's flag also orders the accesses to its
  // entry.
  std::vector<DirectPiece> pieces_;
  std::vector<Queue> queues_ JAXRING_GUARDED_BY(mutex_);
  size_t next_queue_ JAXRING_GUARDED_BY(mutex_) = 0;
  const int signal_every_;
  // Present keys of memory by the keys under which it is known; those that are not here are the same.
  verbs::Keys own_keys_ JAXRING_GUARDED_BY(mutex_);
  verbs::Keys peer_keys_ JAXRING_GUARDED_BY(mutex_);
  Trickle trickle_ JAXRING_GUARDED_BY(mutex_);
  int64_t acked_ JAXRING_GUARDED_BY(mutex_) = 0;  // bytes
  bool busy_ JAXRING_GUARDED_BY(mutex_) = true;   // at every look since trickle_'s
};

class VerbsRecvPump final : public VerbsPump, public DirectMemory {
 public:
  VerbsRecvPump(std::unique_ptr<verbs::Endpoint> endpoint, Descriptor socket, Poller* poller,
                const std::shared_ptr<RecvLink>& link, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
  const std::string& device() const override;
  uint32_t Register(const DirectRegion& region) override;

 private:
  struct Ring {
    RingMemory memory;
    uint64_t received = 0;  // number of messages
    uint64_t credited = 0;  // the position up to which the ring was read, as last reported to the sender
  };
  bool Handle(const Event& event) override JAXRING_REQUIRES(mutex_);
  bool Advance() override JAXRING_REQUIRES(mutex_);
  bool Waiting() const override JAXRING_REQUIRES(mutex_) { return credits_under_way_ > 0; }
  void OnGoodbye(const std::string& words) override JAXRING_REQUIRES(mutex_);
  bool AllHere() const override JAXRING_REQUIRES(mutex_);
  bool WaitsForCredit() const override JAXRING_REQUIRES(mutex_) { return false; }
  std::string Renew(const std::string& received, const verbs::Keys& keys) override JAXRING_REQUIRES(mutex_);
  bool sends() const override { return false; }

  std::array<Ring, 2> rings_ JAXRING_GUARDED_BY(mutex_);
  std::array<uint64_t, 2> sent_ JAXRING_GUARDED_BY(mutex_){};  // messages of each ring, as the sender said when it left
  int credits_under_way_ JAXRING_GUARDED_BY(mutex_) = 0;
};

}  // namespace jaxring
