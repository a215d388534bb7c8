// What Python's threads wait for in an engine: requests for plans, control messages of other processes, and warnings of
// long waits. Also what Python says that planning waits for.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/condition_variable.h"
#include "base/mutex.h"
#include "engine/requests/plan_request.h"

namespace jaxring {

class PythonQueues {
 public:
  // Ends all waits, now and from now on.
  void Close();

  void Ask(PlanRequest request);
  // The next request for a plan. False after `timeout_s`, when a control message has arrived or Wake was called, and at
  // once from Close on.
  bool NextRequest(double timeout_s, PlanRequest* request);

  // Ends NextRequest's wait: something else waits for the thread that calls it.
  void Wake();

  // Drops the message if too many wait. Ends NextRequest's wait.
  void AddControlMessage(ControlMessage message);
  std::optional<ControlMessage> NextControlMessage();
  void ClearControlMessages();

  // What the planning threads wait for, as text; empty if they do not wait. Errors about late plans quote it.
  void PlanningWaitsFor(const std::string& words);
  std::string PlanningWaitsFor();

  // A log text about an operation that has waited for long. Its subject, this process, is left to the caller: "has
  // waited 10 s in ...". Dropped if too many wait.
  void AddStall(std::string text);
  // Nothing after `timeout_s`, and at once after Close.
  std::optional<std::string> NextStall(double timeout_s);

 private:
  Mutex mutex_;
  ConditionVariable request_ready_, stall_ready_;
  bool closed_ JAXRING_GUARDED_BY(mutex_) = false;
  bool woken_ JAXRING_GUARDED_BY(mutex_) = false;
  std::deque<PlanRequest> requests_ JAXRING_GUARDED_BY(mutex_);
  uint64_t next_request_ JAXRING_GUARDED_BY(mutex_) = 1;
  std::deque<ControlMessage> control_messages_ JAXRING_GUARDED_BY(mutex_);
  std::string planning_waits_for_ JAXRING_GUARDED_BY(mutex_);
  std::deque<std::string> stall_texts_ JAXRING_GUARDED_BY(mutex_);
};

}  // namespace jaxring
