// TCP: pumps that carry a ring's messages over a socket into the peer's ring, in the order in which they were
// published. Python has connected and authenticated the socket; the pump owns it from here on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/core/busy_pollers.h"
#include "transport/core/link.h"
#include "transport/core/poller.h"
#include "transport/core/stream.h"
#include "transport/core/wire.h"

namespace jaxring {

// The sending pump is the link's notifier: whoever publishes a message tries to write it out at once; what the socket
// does not take goes out from the poller's thread.
class TcpSendPump final : public Poller::Handler {
 public:
  // `on_room`: the doorbell of this process, rung when a full ring has room again.
  TcpSendPump(std::unique_ptr<Stream> stream, Poller* poller, std::shared_ptr<SendLink> link, Notifier* on_room,
              OnEnd on_end);
  void OnEvents(uint32_t events) override;
  void Pump();
  // Tells the peer that nothing more will come, once it has been sent what the rings hold.
  void SayGoodbye();

 private:
  // Any thread; with the lock.
  void PumpLocked();
  // What is to be written next, the goodbye behind all messages; false if there is nothing.
  bool NextMessage();
  void End(std::string why, Ending ending = Ending::kNoGoodbye);
  void Break();  // by what errno says

  std::unique_ptr<Stream> stream_;
  Poller* poller_;
  std::shared_ptr<SendLink> link_;
  RingReceiver ll_, simple_;  // the pump empties the rings that the lanes fill
  OnEnd on_end_;
  Notifier* on_room_;  // also rung when the connection ends: lanes wait for room that will not come
  std::mutex mutex_;
  bool writing_ = false, armed_ = false;
  enum class Goodbye { kNone, kDue, kSaid } goodbye_ = Goodbye::kNone;
  std::atomic<bool> ended_{false};  // the connection; the link may have been closed before
  WireHeader header_{};
  const char* payload_ = nullptr;
  uint64_t position_ = 0, number_ = 0;  // the next message's, on the connection
  size_t written_ = 0;                  // of header and payload together
};

class TcpRecvPump final : public Poller::Handler, public BusyPollers::Source {
 public:
  TcpRecvPump(std::unique_ptr<Stream> stream, Poller* poller, BusyPollers* busy_pollers, std::shared_ptr<RecvLink> link,
              Notifier* on_message, OnEnd on_end);
  void OnEvents(uint32_t events) override;
  void OnKick() override;
  void EnableEvents() override;
  // For whoever waits for a message: whether anything came.
  bool Poll();
  // Tells the sender that this process ends in good order.
  void SayGoodbye();

 private:
  void Say(char word);
  // Whether anything came.
  bool Read();
  void End(const std::string& why, Ending ending = Ending::kNoGoodbye);
  void Break();  // by what errno says

  std::unique_ptr<Stream> stream_;
  Poller* poller_;
  BusyPollers* const busy_pollers_;
  std::shared_ptr<RecvLink> link_;
  WireReader reader_;
  Notifier* on_message_;
  std::mutex mutex_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool armed_ = true, paused_ = false, closed_ = false;
  OnEnd on_end_;
};

// Makes links over connected sockets. Both keep their pump alive through the poller.
std::shared_ptr<SendLink> MakeTcpSendLink(std::unique_ptr<Stream> stream, Poller* poller, LinkMemory memory,
                                          Notifier* own_doorbell, OnEnd on_end = nullptr);
std::shared_ptr<RecvLink> MakeTcpRecvLink(std::unique_ptr<Stream> stream, Poller* poller, BusyPollers* busy_pollers,
                                          LinkMemory memory, Notifier* own_doorbell, OnEnd on_end = nullptr);
void SayTcpGoodbye(SendLink& link);
void SayTcpGoodbye(RecvLink& link);

}  // namespace jaxring
