// TCP: pumps that carry a ring's messages over a socket into the peer's ring, in the order in which they were
// published. Python has connected and authenticated the socket; the pump owns it from here on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/core/busy_pollers.h"
#include "transport/core/link.h"
#include "transport/core/poller.h"
#include "transport/core/stream.h"
#include "transport/core/wire.h"

namespace jaxring {

// The sending pump is the link's notifier: the thread that publishes a message tries to write it to the socket at once.
// The poller's thread writes the bytes that the socket did not take.
class TcpSendPump final : public Poller::Handler {
 public:
  // `on_room`: this process's doorbell, which is rung when a full ring has room again.
  TcpSendPump(std::unique_ptr<Stream> stream, Poller* poller, std::shared_ptr<SendLink> link, Notifier* on_room,
              OnEnd on_end);
  void OnEvents(uint32_t events) override;
  void OnResumed() override;
  void Pump();
  // Tells the peer that nothing more will be sent, after the messages that are still in the rings.
  void SayGoodbye();
  bool GetTotals(SendTotals* totals) const;

 private:
  // Any thread; holds the lock.
  void PumpLocked() JAXRING_REQUIRES(mutex_);
  // Prepares the next message to be written; the goodbye comes after all messages. Returns false if there is none.
  bool NextMessage() JAXRING_REQUIRES(mutex_);
  // Asks for the event that the socket has room.
  void AwaitRoom() JAXRING_REQUIRES(mutex_);
  // Ends the link if the connection has ended. False then.
  bool CheckConnection() JAXRING_REQUIRES(mutex_);
  void End(std::string why, Ending ending = Ending::kNoGoodbye) JAXRING_REQUIRES(mutex_);
  void Break() JAXRING_REQUIRES(mutex_);  // by what errno says

  std::unique_ptr<Stream> stream_;
  Poller* poller_;
  std::shared_ptr<SendLink> link_;
  RingReceiver ll_, simple_;  // the pump empties the rings that the lanes fill
  OnEnd on_end_;
  Notifier* on_room_;  // also rung when the connection ends, since lanes may wait for room
  Mutex mutex_;
  bool writing_ JAXRING_GUARDED_BY(mutex_) = false;
  bool armed_ JAXRING_GUARDED_BY(mutex_) = false;
  char word_ JAXRING_GUARDED_BY(mutex_) = 0;  // what the receiver has said last
  enum class Goodbye { kNone, kDue, kSaid } goodbye_ JAXRING_GUARDED_BY(mutex_) = Goodbye::kNone;
  std::atomic<bool> ended_{false};  // the connection has ended; the link may have been closed before
  WireHeader header_ JAXRING_GUARDED_BY(mutex_){};
  const char* payload_ JAXRING_GUARDED_BY(mutex_) = nullptr;
  // of the next message: its slot, and its number on the connection
  uint64_t position_ JAXRING_GUARDED_BY(mutex_) = 0;
  uint64_t number_ JAXRING_GUARDED_BY(mutex_) = 0;
  size_t written_ JAXRING_GUARDED_BY(mutex_) = 0;  // of header and payload together
};

class TcpRecvPump final : public Poller::Handler, public BusyPollers::Source {
 public:
  // The bytes that it may send on the connection: this process ends in good order, or has received damaged data.
  static constexpr char kGoodbyeWord = 'b', kDamagedWord = 'd';

  TcpRecvPump(std::unique_ptr<Stream> stream, Poller* poller, BusyPollers* busy_pollers, std::shared_ptr<RecvLink> link,
              Notifier* on_message, OnEnd on_end);
  void OnEvents(uint32_t events) override;
  void OnKick() override;
  void OnResumed() override;
  void EnableEvents() override;
  // Reads the socket on a thread that waits for a message. Returns whether anything arrived.
  bool Poll();
  // Tells the sender that this process ends in good order.
  void SayGoodbye();

 private:
  void Say(char word);
  // Returns whether anything arrived.
  bool Read() JAXRING_REQUIRES(mutex_);
  void End(const std::string& why, Ending ending = Ending::kNoGoodbye) JAXRING_REQUIRES(mutex_);
  void Break() JAXRING_REQUIRES(mutex_);  // by what errno says

  std::unique_ptr<Stream> stream_;
  Poller* poller_;
  BusyPollers* const busy_pollers_;
  std::shared_ptr<RecvLink> link_;
  WireReader reader_ JAXRING_GUARDED_BY(mutex_);
  Notifier* on_message_;
  Mutex mutex_;
  std::vector<char> buffer_ JAXRING_GUARDED_BY(mutex_);
  size_t begin_ JAXRING_GUARDED_BY(mutex_) = 0;
  size_t end_ JAXRING_GUARDED_BY(mutex_) = 0;
  bool armed_ JAXRING_GUARDED_BY(mutex_) = true;
  bool paused_ JAXRING_GUARDED_BY(mutex_) = false;
  bool closed_ JAXRING_GUARDED_BY(mutex_) = false;
  OnEnd on_end_;
};

// Make links over connected sockets. The poller keeps their pumps alive.
std::shared_ptr<SendLink> MakeTcpSendLink(std::unique_ptr<Stream> stream, Poller* poller, LinkMemory memory,
                                          Notifier* own_doorbell, OnEnd on_end = nullptr);
std::shared_ptr<RecvLink> MakeTcpRecvLink(std::unique_ptr<Stream> stream, Poller* poller, BusyPollers* busy_pollers,
                                          LinkMemory memory, Notifier* own_doorbell, OnEnd on_end = nullptr);
void SayTcpGoodbye(SendLink& link);
void SayTcpGoodbye(RecvLink& link);

}  // namespace jaxring
