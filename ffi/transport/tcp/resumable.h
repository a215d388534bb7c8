// A connection that outlives the path it runs over. Both ends keep what they have written until the peer's kernel has
// it, and count what they have read. When a path fails, Python connects the two processes over another one, and both go
// on from what the other has read: nothing is lost, and nothing comes twice.
//
//   the end that dialled                the other end
//   Suspend
//             --- request ------------->
//                                       Suspend, Drain
//             <-- what it has read -----
//   Drain
//             --- what it has read ---->
//   Resume                              Resume
//
// Each end writes no more before the other one drains its old socket. So whatever the old path still delivers after
// that is among the bytes that are kept. The request has a number, by which a message of an attempt that was given up,
// and arrives late, is refused. An attempt may fail at one end after the other one has resumed, and then the kernel
// alone has what comes on that connection. Therefore the first byte that each end writes to it says that it has
// resumed, and until that has come the other end gives up nothing that it keeps. A connection that ends before, or
// begins with something else, is one on which the other end has not resumed: it counts as lost, not as ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/core/movable.h"
#include "transport/core/poller.h"
#include "transport/core/stream.h"
#include "transport/tcp/kept_bytes.h"
#include "transport/tcp/tcp_watch.h"

namespace jaxring {

class ResumableStream final : public Stream, public Movable {
 public:
  // Its descriptor stays the same from connection to connection. `poller`: the one that watches the descriptor.
  // The destructor calls `on_destroyed` first. `get_state` is GetTcpState, but in tests.
  ResumableStream(std::unique_ptr<Stream> first, Poller* poller, std::function<void()> on_destroyed = nullptr,
                  TcpWatch::GetState get_state = GetTcpState);
  ~ResumableStream() override;

  // While there is no connection these say EAGAIN, but a single byte is always taken. The poller's handler learns of
  // the next connection by OnResumed. An error that says that the path has failed ends the connection in this way, too.
  using Stream::Write;
  ssize_t Write(const iovec* parts, int count) override;
  ssize_t Read(void* to, size_t bytes) override;
  bool Flush() override;
  bool holds_bytes() const override;
  std::string Why() const override;
  bool given_up() const override;

  // Begins an attempt to go on over another connection. Throws std::invalid_argument unless `attempt` is higher than
  // those before. The functions that follow throw it where `attempt` is not the latest one.
  void Suspend(uint64_t attempt);
  // Reads what the old connection has brought, and closes it. Returns how many bytes were read since the first one.
  uint64_t Drain(uint64_t attempt);
  // Goes on over `next`, whose other end has read the first `received` bytes of this one. Throws std::invalid_argument,
  // too, where these cannot be.
  void Resume(uint64_t attempt, std::unique_ptr<Stream> next, uint64_t received);
  // Reads and writes fail with an errno of this ending, and Why says `why`.
  void Fail(const std::string& why, Ending ending) override;

  Time suspended_at() const override;
  bool over() const override;
  // Whether the peer is known to have resumed on the present connection.
  bool confirmed() const;
  bool PeerKnows() const override { return !confirmed(); }
  // Its kernel has it, for its process to read.
  bool IsDelivered() override;
  void Observe(Time now) override;
  // The kernel has sent again, or asked for an answer, in that time.
  bool IsSilent(std::chrono::milliseconds limit) const override;
  // There is more to send, and the peer takes it.
  bool IsTrickling(Time now) override;

 private:
  void Lose() JAXRING_REQUIRES(mutex_);
  // Whether an error of the connection, by errno, is no end of it: it can go on over another one.
  bool CanGoOn() const JAXRING_REQUIRES(mutex_);
  // Reads whether the peer has resumed. Loses a connection that has ended before.
  void Confirm() JAXRING_REQUIRES(mutex_);
  bool FlushLocked() JAXRING_REQUIRES(mutex_);
  // As KeptBytes::MakeRoom, of what the peer's kernel has acknowledged first.
  size_t MakeRoom(size_t bytes) JAXRING_REQUIRES(mutex_);
  ssize_t WriteConnection(const iovec* parts, int count) JAXRING_REQUIRES(mutex_);
  ssize_t ReadConnection(void* to, size_t bytes) JAXRING_REQUIRES(mutex_);
  void CheckAttempt(uint64_t attempt) const JAXRING_REQUIRES(mutex_);

  Poller* const poller_;
  const std::function<void()> on_destroyed_;
  mutable Mutex mutex_;
  std::unique_ptr<Stream> stream_ JAXRING_GUARDED_BY(mutex_);  // null from Drain to Resume
  Time suspended_at_ JAXRING_GUARDED_BY(mutex_){};
  uint64_t attempt_ JAXRING_GUARDED_BY(mutex_) = 0;
  bool over_ JAXRING_GUARDED_BY(mutex_) = false;
  int failed_ JAXRING_GUARDED_BY(mutex_) = 0;         // errno of reads and writes after Fail
  bool confirmed_ JAXRING_GUARDED_BY(mutex_) = true;  // the peer has resumed on this connection
  bool foreign_ JAXRING_GUARDED_BY(mutex_) = false;   // something else has come on it, which nobody reads
  std::string why_ JAXRING_GUARDED_BY(mutex_);
  KeptBytes kept_ JAXRING_GUARDED_BY(mutex_);
  // What of the `received_` bytes that were read the reader has not taken yet.
  std::vector<char> pending_ JAXRING_GUARDED_BY(mutex_);
  size_t pending_begin_ JAXRING_GUARDED_BY(mutex_) = 0;
  uint64_t received_ JAXRING_GUARDED_BY(mutex_) = 0;
  TcpWatch watch_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
