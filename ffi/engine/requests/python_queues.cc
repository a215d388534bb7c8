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
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  request_ready_.notify_all();
  stall_ready_.notify_all();
}

void PythonQueues::Ask(PlanRequest request) {
  {
    std::lock_guard lock(mutex_);
    request.id = next_request_++;
    requests_.push_back(std::move(request));
  }
  request_ready_.notify_one();
}

bool PythonQueues::NextRequest(double timeout_s, PlanRequest* request) {
  std::unique_lock lock(mutex_);
  request_ready_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                          [this] { return closed_ || !requests_.empty() || !control_messages_.empty(); });
  if (requests_.empty()) return false;
  *request = std::move(requests_.front());
  requests_.pop_front();
  return true;
}

void PythonQueues::AddControlMessage(ControlMessage message) {
  std::lock_guard lock(mutex_);
  if (control_messages_.size() < kMaxControlMessages) control_messages_.push_back(std::move(message));
  request_ready_.notify_one();
}

std::optional<ControlMessage> PythonQueues::NextControlMessage() {
  std::lock_guard lock(mutex_);
  if (control_messages_.empty()) return std::nullopt;
  auto message = std::move(control_messages_.front());
  control_messages_.pop_front();
  return message;
}

void PythonQueues::ClearControlMessages() {
  std::lock_guard lock(mutex_);
  control_messages_.clear();
}

void PythonQueues::PlanningWaitsFor(const std::string& words) {
  std::lock_guard lock(mutex_);
  planning_waits_for_ = words;
}

std::string PythonQueues::PlanningWaitsFor() {
  std::lock_guard lock(mutex_);
  return planning_waits_for_;
}

void PythonQueues::AddStall(std::string text) {
  std::lock_guard lock(mutex_);
  if (stall_texts_.size() < kMaxStallTexts) stall_texts_.push_back(std::move(text));
  stall_ready_.notify_one();
}

std::optional<std::string> PythonQueues::NextStall(double timeout_s) {
  std::unique_lock lock(mutex_);
  stall_ready_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                        [this] { return closed_ || !stall_texts_.empty(); });
  if (stall_texts_.empty()) return std::nullopt;
  std::string text = std::move(stall_texts_.front());
  stall_texts_.pop_front();
  return text;
}

}  // namespace jaxring
