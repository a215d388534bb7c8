#include "network/network.h"

#include <chrono>

namespace jaxring {
namespace {

// After this time since a process's goodbye, none of its messages can still arrive: links that were being set up are in
// service by then, and devices have delivered.
constexpr auto kLastMessages = std::chrono::seconds(2);
constexpr size_t kRepeatedFailures = 64;

}  // namespace

Network::Network(std::unique_ptr<Doorbell> doorbell, uint32_t slot_bytes, const FaultPlan& faults,
                 NetworkClient* client)
    : client_(client), doorbell_(std::move(doorbell)), links_(slot_bytes, doorbell_.get(), faults), peers_(client) {}

void Network::SendMissed(int process, FrameSender& control) {
  // The peer may be about to begin an operation that failed before the two were connected.
  std::vector<ControlFrame> failures;
  for (const auto& [key, failure] : failures_.Last(kRepeatedFailures)) failures.push_back(FailureFrame(key, failure));
  peers_.SendMissed(process, control, failures);
}

void Network::OnFrame(int process, const ControlFrame& frame) {
  peers_.OnFrame(process, frame);
  switch (frame.kind) {
    case ControlFrame::Kind::kAlive:
      break;
    case ControlFrame::Kind::kGoodbye:
      any_left_.store(true, std::memory_order_release);
      CloseLeft(peers_.Departures());
      break;
    case ControlFrame::Kind::kFailed:
      if (!RecordFailure(frame.key, Status::Error(frame.code, frame.text))) break;
      doorbell_->NotifyAll();
      peers_.TellAll(frame, process);
      break;
    case ControlFrame::Kind::kGone:
      RecordCrash(frame.process, frame.text, frame.ending, frame.witness < 0 ? process : frame.witness);
      break;
    case ControlFrame::Kind::kLeaving:
      RecordCrash(process, frame.text, frame.ending);
      break;
    case ControlFrame::Kind::kMessage:
      client_->OnMessage(process, frame.text);
      break;
    case ControlFrame::Kind::kHalted:
      failures_.NoteTrouble();
      client_->OnHalted(process, frame.text);
      break;
  }
}

void Network::ControlEnded(int process, const std::string& why, Ending ending) {
  if (!peers_.HasLeft(process)) RecordCrash(process, EndOfSocket(why, ending), ending);
  // The first report of its end counts: the connection's end may only be a consequence of that.
  const PeerEnd known = peers_.EndOf(process);
  links_.CloseShared(process, known.reason, known.ending);
  doorbell_->NotifyAll();
}

OnEnd Network::LinkEnded(int process) {
  // Only this connection ended: other connections of the same peer may still hold messages.
  return [this, process, epoch = epoch_.load()](const std::string& why, Ending ending) {
    if (ending == Ending::kGoodbye || epoch != epoch_.load() || peers_.HasLeft(process)) return;
    RecordCrash(process, why, ending);
  };
}

void Network::RecordCrash(int process, const std::string& reason, Ending ending, int witness) {
  failures_.NoteTrouble();
  if (!peers_.RecordCrash(process, reason, ending, witness).second) return;
  // Forwarded, since not every process is connected with the one that crashed.
  ControlFrame gone;
  gone.kind = ControlFrame::Kind::kGone;
  gone.process = process;
  gone.witness = witness;
  gone.ending = ending;
  gone.text = reason;
  peers_.TellAll(gone, process);
}

bool Network::RecordFailure(uint64_t key, const Status& failure) {
  // First here: an operation that begins meanwhile finds it, or is found by the client.
  if (!failures_.Record(key, failure)) return false;
  client_->OnFailure(key, failure);
  return true;
}

void Network::BroadcastFailure(uint64_t key, Status failure, int first) {
  if (first >= 0) failure.message += " (Process " + std::to_string(first) + " was the first to see it.)";
  if (RecordFailure(key, failure)) peers_.TellAll(FailureFrame(key, failure), -1);
}

std::vector<int> Network::Check(Time now) {
  std::vector<int> settled;
  if (any_left_.load(std::memory_order_acquire)) {
    const std::vector<PeerMonitor::Departure> departures = peers_.Departures();
    CloseLeft(departures);
    for (const auto& each : departures) {
      if (now - each.at > kLastMessages) settled.push_back(each.process);
    }
  }
  CheckConnections(now);
  return settled;
}

void Network::CloseLeft(const std::vector<PeerMonitor::Departure>& departures) {
  for (const auto& each : departures) links_.CloseLeft(each.process, each.reason);
}

void Network::DropConnections() {
  // A peer that has not begun the new epoch yet must not take the end of these connections for a crash.
  ControlFrame goodbye;
  goodbye.kind = ControlFrame::Kind::kGoodbye;
  peers_.TellAll(goodbye, -1);
  EndConnections();
  links_.Clear("it belongs to an earlier epoch of the job");
  peers_.Clear();
  failures_.Clear();
  unexpected_.Clear();
  any_left_ = false;
}

}  // namespace jaxring
