// Warns of long waits, well before their deadlines: which operation waits, for which peer, and what that peer does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/heartbeats/wait_reporter.h"
#include "engine/operation/operation.h"

namespace jaxring {

// For one thread.
class StallWatch {
 public:
  // `warning_s`: when to warn first; 0: never.
  StallWatch(const WaitReporter* reporter, double warning_s) : reporter_(reporter), warning_s_(warning_s) {}

  // Whether it is time to look.
  bool IsDue(Clock::time_point now) const;
  // Looks at the operations in flight, and at the executions that have not become operations. Returns a warning of the
  // one that has waited longest: "has waited 10 s in ...".
  std::optional<std::string> Look(Clock::time_point now, const std::vector<std::shared_ptr<Operation>>& active,
                                  std::vector<Activity> waiting);
  // Whether the last look has examined lanes: that makes them busy, and workers skip busy lanes.
  bool has_examined() const { return examined_; }

 private:
  // An operation, or an execution that has not become one yet, that makes no progress.
  struct Stall {
    uint64_t progress = 0;
    Clock::time_point since;  // the last progress
    int warnings = 0;         // given so far
    std::shared_ptr<Operation> op;
    std::string what;  // its description if there is no operation
  };
  static std::string Describe(const Stall& stall, const std::string& waits, Clock::time_point now);

  const WaitReporter* const reporter_;
  const double warning_s_;
  Clock::time_point looked_at_{};
  bool examined_ = false;
  std::map<uint64_t, Stall> stalls_;  // by operation or execution
};

}  // namespace jaxring
