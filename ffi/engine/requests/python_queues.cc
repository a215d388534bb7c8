#include "engine/requests/python_queues.h"

#include <chrono>
#include <utility>

namespace jaxring {
namespace {

// Further control messages are dropped; Python reads them far faster than a sane peer sends them.
constexpr size_t kMaxControlMessages = 65536;
constexpr size_t kMaxStallTexts = 64;

}  // namespace

void PythonQueues::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  request_ready_.NotifyAll();
  stall_ready_.NotifyAll();
}

void PythonQueues::Ask(PlanRequest request) {
  {
    MutexLock lock(mutex_);
    request.id = next_request_++;
    requests_.push_back(std::move(request));
  }
  request_ready_.NotifyOne();
}

bool PythonQueues::NextRequest(double timeout_s, PlanRequest* request) {
  const auto deadline = After(timeout_s);
  MutexLock lock(mutex_);
  while (!closed_ && !woken_ && requests_.empty() && control_messages_.empty() && timeout_s > 0 &&
         request_ready_.WaitUntil(mutex_, deadline)) {
  }
  woken_ = false;
  if (requests_.empty()) return false;
  *request = std::move(requests_.front());
  requests_.pop_front();
  return true;
}

void PythonQueues::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  request_ready_.NotifyOne();
}

void PythonQueues::AddControlMessage(ControlMessage message) {
  MutexLock lock(mutex_);
  if (control_messages_.size() < kMaxControlMessages) control_messages_.push_back(std::move(message));
  request_ready_.NotifyOne();
}

std::optional<ControlMessage> PythonQueues::NextControlMessage() {
  MutexLock lock(mutex_);
  if (control_messages_.empty()) return std::nullopt;
  auto message = std::move(control_messages_.front());
  control_messages_.pop_front();
  return message;
}

void PythonQueues::ClearControlMessages() {
  MutexLock lock(mutex_);
  control_messages_.clear();
}

void PythonQueues::PlanningWaitsFor(const std::string& words) {
  MutexLock lock(mutex_);
  planning_waits_for_ = words;
}

std::string PythonQueues::PlanningWaitsFor() {
  MutexLock lock(mutex_);
  return planning_waits_for_;
}

void PythonQueues::AddStall(std::string text) {
  MutexLock lock(mutex_);
  if (stall_texts_.size() < kMaxStallTexts) stall_texts_.push_back(std::move(text));
  stall_ready_.NotifyOne();
}

std::optional<std::string> PythonQueues::NextStall(double timeout_s) {
  const auto deadline = After(timeout_s);
  MutexLock lock(mutex_);
  while (!closed_ && stall_texts_.empty() && stall_ready_.WaitUntil(mutex_, deadline)) {
  }
  if (stall_texts_.empty()) return std::nullopt;
  std::string text = std::move(stall_texts_.front());
  stall_texts_.pop_front();
  return text;
}

}  // namespace jaxring
