// A control connection with another process of the job. Python has connected and authenticated it. Its end means that
// the process is gone.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "network/peers/control_frames.h"
#include "network/peers/frame_sender.h"
#include "transport/core/poller.h"
#include "transport/core/stream.h"

namespace jaxring {

class ControlLink final : public Poller::Handler, public FrameSender {
 public:
  // Called on the poller's thread.
  using OnFrame = std::function<void(const ControlFrame& frame)>;
  using OnEnd = std::function<void(const std::string& why, Ending ending)>;

  // In service once it is added to the poller. If the peer's kernel acknowledges nothing for `timeout_s`, the
  // connection counts as cut. A stopped process is not cut off, since its kernel goes on acknowledging.
  ControlLink(std::unique_ptr<Stream> stream, double timeout_s, Poller* poller, OnFrame on_frame, OnEnd on_end);
  int fd() const { return stream_->fd(); }
  void OnEvents(uint32_t events) override;
  void OnResumed() override;
  // Bytes that the socket does not take are queued; frames beyond a limit are dropped. A `dispensable` frame is dropped
  // if any bytes are queued.
  bool Send(const std::string& frame, bool dispensable) override;

 private:
  // Whether all is written.
  bool Flush() JAXRING_REQUIRES(mutex_);
  void Read();
  void End(const std::string& why, Ending ending = Ending::kNoGoodbye);

  std::unique_ptr<Stream> stream_;
  const double timeout_s_;
  Poller* poller_;
  OnFrame on_frame_;
  OnEnd on_end_;
  FrameReader reader_;  // the poller's thread only
  Mutex mutex_;
  std::string unsent_ JAXRING_GUARDED_BY(mutex_);
  bool ended_ JAXRING_GUARDED_BY(mutex_) = false;
  int failed_ JAXRING_GUARDED_BY(mutex_) = 0;  // errno of a failed write: a socket reports its error only once
};

}  // namespace jaxring
