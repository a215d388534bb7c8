// This process's end of a control connection, as those see it who have something to say.
#pragma once

#include <string>

namespace jaxring {

class FrameSender {
 public:
  virtual ~FrameSender() = default;
  // May be called on any thread, and never waits. A `dispensable` frame, which is only of use now, may be dropped where
  // others wait to be sent. False if the connection has ended.
  virtual bool Send(const std::string& frame, bool dispensable) = 0;
};

}  // namespace jaxring
