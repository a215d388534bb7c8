// A connection beside the data with another process of the job. Python has connected and authenticated it; its end
// means that the process is gone.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "network/control_frames.h"
#include "transport/core/poller.h"
#include "transport/core/stream.h"

namespace jaxring {

class ControlLink final : public Poller::Handler {
 public:
  // Called on the poller's thread.
  using OnFrame = std::function<void(const ControlFrame& frame)>;
  using OnEnd = std::function<void(const std::string& why, Ending ending)>;

  // Not in service before the poller knows it. What the peer's kernel has not acknowledged for `timeout_s` has no way
  // to it: a cut cable sends no word. A process that is stopped is not cut off, since its kernel goes on acknowledging.
  ControlLink(std::unique_ptr<Stream> stream, double timeout_s, Poller* poller, OnFrame on_frame, OnEnd on_end);
  int fd() const { return stream_->fd(); }
  void OnEvents(uint32_t events) override;
  // Any thread. Never waits: what the socket does not take goes out later, and beyond a limit nothing is kept. A frame
  // that is only of use now (`dispensable`) is not kept at all. False where the connection has ended.
  bool Send(const std::string& frame, bool dispensable = false);

 private:
  void Flush();
  void Read();
  void End(const std::string& why, Ending ending = Ending::kNoWord);

  std::unique_ptr<Stream> stream_;
  const double timeout_s_;
  Poller* poller_;
  OnFrame on_frame_;
  OnEnd on_end_;
  FrameReader reader_;  // the poller's thread only
  std::mutex mutex_;
  std::string unsent_;
  bool ended_ = false;
  int failed_ = 0;  // errno of a write: a socket tells only once why it broke
};

}  // namespace jaxring
