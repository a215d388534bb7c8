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
// and goes on over others (verbs_renewal.cc). The receiver first ends its queue pairs and takes what had arrived
// before, so that nothing arrives any more, and then says which positions it has. The sender writes the others again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/core/busy_pollers.h"
#include "transport/core/link.h"
#include "transport/core/movable.h"
#include "transport/core/poller.h"
#include "transport/core/trickle.h"
#include "transport/verbs/verbs_endpoint.h"
#include "transport/verbs/verbs_regions.h"

namespace jaxring {

class VerbsPump : public Poller::Handler,
                  public BusyPollers::Source,
                  public MovableLink,
                  public std::enable_shared_from_this<VerbsPump> {
 public:
  // `link` owns `end` and the memory that the endpoint has registered.
  VerbsPump(std::shared_ptr<void> link, std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller, LinkEnd* end,
            Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
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
  void Hear();
  // Tells the peer that this process ends in good order.
  virtual void SayGoodbye();
  bool iwarp() const {
    MutexLock lock(mutex_);
    return endpoint_->offer().layer == verbs::Layer::kIwarp;
  }
  // Called regularly: closes the link if the port has been down for longer than the device resends a lost packet. Not
  // every device ends its queue pairs then; soft-RoCE resends for ever.
  void CheckPort();

  void SetMovable() override { movable_ = true; }
  std::string Offer(uint64_t attempt, const Place& place) override;
  void Prepare(uint64_t attempt, const std::string& peer_offer) override;
  void Try(uint64_t attempt, double timeout_s) override;
  std::string Switch(uint64_t attempt, const std::string& received) override;
  void TakeOver(uint64_t attempt, int fd) override;
  void Discard() override;
  void Observe(Time now) override;
  Time suspended_at() const override { return suspended_at_; }
  bool over() const override { return closed(); }
  bool IsDelivered() override;
  bool IsSilent(std::chrono::milliseconds limit) const override;
  bool PeerKnows() const override { return true; }
  void Fail(const std::string& why, Ending ending) override;

 protected:
  using Event = verbs::Endpoint::Event;
  // Both are called under the lock and return false when the connection has failed.
  virtual bool Handle(const Event& event) JAXRING_REQUIRES(mutex_) = 0;
  virtual bool Advance() JAXRING_REQUIRES(mutex_) = 0;
  // Whether something was sent and has not completed.
  virtual bool Waiting() const JAXRING_REQUIRES(mutex_) = 0;
  // The peer has said goodbye, with these words.
  virtual void Farewell(const std::string&) JAXRING_REQUIRES(mutex_) {}
  // Whether everything has arrived that the peer had sent when it said goodbye.
  virtual bool AllHere() const JAXRING_REQUIRES(mutex_) { return true; }
  // Whether the peer's device is to acknowledge something by itself, so that its silence means that it cannot be
  // reached. `ask`: has it acknowledge something where nothing is under way. False if a request failed.
  virtual bool Awaits(bool /*ask*/, bool* awaits) JAXRING_REQUIRES(mutex_) {
    *awaits = false;
    return true;
  }
  // Goes on over the new endpoint. See Switch; throws std::runtime_error where the peer's words make no sense.
  virtual std::string Renew(const std::string& received) JAXRING_REQUIRES(renewal_mutex_, mutex_) = 0;
  virtual bool sends() const = 0;
  // Whether a message waits for a credit. No thread polls for the credit once the message's operation has ended here.
  virtual bool MustHear() const JAXRING_REQUIRES(mutex_) = 0;
  // Returns whether anything was complete.
  bool PumpLocked() JAXRING_REQUIRES(mutex_);
  void EnableEventsLocked() JAXRING_REQUIRES(mutex_);
  // `ending`: unless the peer has said goodbye.
  void End(const std::string& why, bool tell, Ending ending = Ending::kNoGoodbye) JAXRING_REQUIRES(mutex_);
  // Reads the control connection. Returns true if it has ended.
  bool Listen() JAXRING_REQUIRES(mutex_);
  void Say(const std::string& words) JAXRING_REQUIRES(mutex_);
  static void SayOn(int fd, const std::string& words);
  // Suspends the link until it goes on over other ports.
  void Lose() JAXRING_REQUIRES(mutex_);
  bool lost() const { return suspended_at() != Time{}; }
  uint32_t RegisterMore(const DirectRegion& region);
  // Takes what was said out of `heard_`, but for an error, which is the last word.
  void TakeWords() JAXRING_REQUIRES(mutex_);
  bool HasSpoken() const JAXRING_REQUIRES(mutex_) { return goodbye_ || !heard_.empty(); }
  // After a goodbye: completes the link when everything is here, and ends it if the peer has closed the connection.
  void CompleteLocked() JAXRING_REQUIRES(mutex_);
  // Tells the peer that this process ends in good order; `words` are for its Farewell.
  void SendGoodbye(const std::string& words) JAXRING_REQUIRES(mutex_);
  std::string LastWord() const JAXRING_REQUIRES(mutex_);
  // Whether the peer has ended the link for good, and begun to say why.
  bool HasGivenUp() const JAXRING_REQUIRES(mutex_);
  bool Misbehaved() JAXRING_REQUIRES(mutex_);
  // Whether the peer has everything that this end's goodbye told of.
  bool acknowledged() const JAXRING_REQUIRES(mutex_) { return acknowledged_; }
  // The present endpoint, which changes under both mutexes: the analysis knows of one.
  verbs::Endpoint* endpoint() const JAXRING_REQUIRES(renewal_mutex_) JAXRING_NO_THREAD_SAFETY_ANALYSIS {
    return endpoint_.get();
  }
  bool closed() const { return end_->closed.load(std::memory_order_acquire); }

 private:
  std::shared_ptr<void> link_;  // outlives the endpoint

 protected:
  // Of attempts and registrations. The thread that carries all GPU messages waits for it, so queue pairs are destroyed
  // when it is free, but for the receiver's old ones: soft-RoCE takes 3 s for one with writes under way to an address
  // that does not answer.
  Mutex renewal_mutex_ JAXRING_ACQUIRED_BEFORE(mutex_);
  std::vector<std::unique_ptr<verbs::Endpoint>> retired_ JAXRING_GUARDED_BY(renewal_mutex_);  // until Discard
  std::unique_ptr<verbs::Endpoint> endpoint_ JAXRING_GUARDED_BY(mutex_);  // changed under both mutexes
  verbs::Regions regions_ JAXRING_GUARDED_BY(renewal_mutex_);
  const std::string device_;  // of the first endpoint
  Notifier* own_doorbell_;
  mutable Mutex mutex_;

 private:
  void CheckAttempt(uint64_t attempt) const JAXRING_REQUIRES(renewal_mutex_);

  int fd_ JAXRING_GUARDED_BY(mutex_);
  Poller* poller_;
  LinkEnd* end_;
  OnEnd on_end_;
  BusyPollers* const busy_pollers_;
  bool armed_ JAXRING_GUARDED_BY(mutex_) = true;
  bool goodbye_ JAXRING_GUARDED_BY(mutex_) = false;
  bool acknowledged_ JAXRING_GUARDED_BY(mutex_) = false;
  bool closed_by_peer_ JAXRING_GUARDED_BY(mutex_) = false;  // the control connection, after a goodbye
  std::string heard_ JAXRING_GUARDED_BY(mutex_);
  std::string farewell_ JAXRING_GUARDED_BY(mutex_);  // what SendGoodbye has sent
  std::vector<Event> events_ JAXRING_GUARDED_BY(mutex_);
  std::atomic<bool> movable_{false};
  std::atomic<Time> suspended_at_{Time{}};
  // The last look, and since when there have been the same completions, though there is one to come.
  std::atomic<Time> observed_at_{Time{}}, stalled_since_{Time{}};
  bool awaited_ JAXRING_GUARDED_BY(mutex_) = false;  // there was one to come at the last look
  Time completed_at_ JAXRING_GUARDED_BY(mutex_){};   // the last look that saw others than the one before
  uint64_t completions_ JAXRING_GUARDED_BY(mutex_) = 0;
  uint64_t observed_ JAXRING_GUARDED_BY(mutex_) = 0;
  // An attempt to go on over other ports: its number, its endpoint, and all ports that were tried since the link last
  // went over to others.
  uint64_t attempt_ JAXRING_GUARDED_BY(renewal_mutex_) = 0;
  std::unique_ptr<verbs::Endpoint> next_ JAXRING_GUARDED_BY(renewal_mutex_);
  std::set<std::string> tried_ JAXRING_GUARDED_BY(mutex_);
  // Until the new control connection is taken over. Begun: the peer may go on with that already.
  enum class Handover { kNone, kBegun, kSwitched };
  Handover handover_ JAXRING_GUARDED_BY(mutex_) = Handover::kNone;
  Time switched_at_ JAXRING_GUARDED_BY(mutex_){};
  bool confirmed_ JAXRING_GUARDED_BY(mutex_) = true;        // the sending end has taken this control connection over
  bool control_failed_ JAXRING_GUARDED_BY(mutex_) = false;  // its path has failed, or the peer may have another one
  std::chrono::steady_clock::time_point checked_ JAXRING_GUARDED_BY(mutex_){};
  std::chrono::steady_clock::time_point down_since_ JAXRING_GUARDED_BY(mutex_){};
  std::chrono::steady_clock::time_point closed_since_ JAXRING_GUARDED_BY(mutex_){};
};

class VerbsSendPump final : public VerbsPump, public DirectSend {
 public:
  VerbsSendPump(std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller,
                const std::shared_ptr<SendLink>& link, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
  // Waits until all messages have arrived, for some seconds at most.
  void SayGoodbye() override;
  const std::string& device() const override { return device_; }
  uint32_t Register(const DirectRegion& region) override { return RegisterMore(region); }
  void Attach(uint64_t position, const DirectPiece& piece) override;
  bool IsTrickling(Time now) override;

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
  bool MustHear() const override JAXRING_REQUIRES(mutex_) { return rings_[0].held || rings_[1].held; }
  bool Awaits(bool ask, bool* awaits) override JAXRING_REQUIRES(mutex_);
  std::string Renew(const std::string& received) override JAXRING_REQUIRES(renewal_mutex_, mutex_);
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
  VerbsRecvPump(std::unique_ptr<verbs::Endpoint> endpoint, int fd, Poller* poller,
                const std::shared_ptr<RecvLink>& link, Notifier* own_doorbell, BusyPollers* busy_pollers, OnEnd on_end);
  const std::string& device() const override { return device_; }
  uint32_t Register(const DirectRegion& region) override { return RegisterMore(region); }

 private:
  struct Ring {
    RingMemory memory;
    uint64_t received = 0;  // number of messages
    uint64_t credited = 0;  // the position up to which the ring was read, as last reported to the sender
  };
  bool Handle(const Event& event) override JAXRING_REQUIRES(mutex_);
  bool Advance() override JAXRING_REQUIRES(mutex_);
  bool Waiting() const override JAXRING_REQUIRES(mutex_) { return credits_under_way_ > 0; }
  void Farewell(const std::string& words) override JAXRING_REQUIRES(mutex_);
  bool AllHere() const override JAXRING_REQUIRES(mutex_);
  bool MustHear() const override JAXRING_REQUIRES(mutex_) { return false; }
  std::string Renew(const std::string& received) override JAXRING_REQUIRES(renewal_mutex_, mutex_);
  bool sends() const override { return false; }

  std::array<Ring, 2> rings_ JAXRING_GUARDED_BY(mutex_);
  std::array<uint64_t, 2> sent_ JAXRING_GUARDED_BY(mutex_){};  // messages of each ring, as the sender said when it left
  int credits_under_way_ JAXRING_GUARDED_BY(mutex_) = 0;
};

}  // namespace jaxring
