// Recovery from an error: all operations in flight fail, and the job begins a new epoch without the links, plans and
// counts of the old one.
#include "engine/engine.h"
#include "engine/site.h"

namespace jaxring {

bool Engine::Halt(const std::string& reason, bool tell, int except) {
  const Halting::Halted halted = halting_.Halt(reason, tell);
  ControlFrame frame;
  frame.kind = ControlFrame::Kind::kHalted;
  frame.text = halted.reason;
  if (halted.tell) network_->peers().TellAll(frame, except);
  if (halted.news) network_->Kick();
  return halted.news;
}

void Engine::FailRefused(Operation& op) {
  // The caller has counted the operation (ActiveOperations::Begin). So either Renew waits for it, or it fails here.
  if (std::optional<std::string> why = halting_.Reason()) {
    op.Fail(Status::Error(Code::kAborted, op.What() + ": " + *why));
  } else if (op.plan().epoch != network_->epoch()) {
    op.Fail(Status::Error(Code::kAborted, op.What() + ": it was begun before the job was rebuilt"));
  }
}

bool Engine::Renew(uint64_t epoch, double timeout_s) {
  const auto until = Clock::now() + std::chrono::duration<double>(timeout_s);
  network_->Kick();
  while (active_.unfinished() != 0) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  network_->BeginEpoch(epoch);
  const Status over =
      Status::Error(Code::kAborted, "jaxring: " + halting_.Reason().value_or("the job is being rebuilt"));
  for (const auto& site : sites_.All()) site->Renew(epoch, over);
  network_->DropConnections();
  python_.ClearControlMessages();
  sites_.Forget();
  halting_.BeginEpoch();
  active_.Touch();  // makes workers drop their references to ended operations
  network_->doorbell().NotifyAll();
  return true;
}

}  // namespace jaxring
