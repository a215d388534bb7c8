#include "cuda/host/kernel_faults.h"

#include <cstdio>

namespace jaxring::cuda {
namespace {

const char* Name(Wait wait) {
  switch (wait) {
    case Wait::kMessage:
      return "a message";
    case Wait::kRoom:
      return "room for a message";
    case Wait::kBegin:
      return "the begin of the launch";
    case Wait::kEnd:
      return "the end of the launch";
    case Wait::kCopies:
      return "the copies by all thread blocks";
    default:
      return "nothing";
  }
}

std::string WrongSizes(const Status& status) {
  const std::string peer = std::to_string(status.peer);
  switch (static_cast<Sizes>(status.step)) {
    case Sizes::kNegative:
      return "an offset or size for rank " + peer + " is negative";
    case Sizes::kInput:
      return "input_offsets + send_sizes for peer " + peer + " reach past the operand's end";
    case Sizes::kOutput:
      return "what rank " + peer + " sends here reaches past the output's end";
    default:
      return "recv_sizes says " + std::to_string(status.number) + " rows from rank " + peer +
             ", whose send_sizes says " + std::to_string(status.waited_ns);
  }
}

}  // namespace

bool Follows(const Status& status) {
  const auto fault = static_cast<Fault>(status.fault);
  return fault == Fault::kAborted || fault == Fault::kPeerFailed;
}

std::string Sentence(const Status& status, const std::string& self, const std::string& peer, const std::string& call) {
  char where[96];
  std::snprintf(where, sizeof where, " (number %llu, lane %u, step %u, tile %u, after %.3g s)",
                static_cast<unsigned long long>(status.number), status.lane, status.step, status.tile,
                static_cast<double>(status.waited_ns) * 1e-9);
  const std::string awaited = std::string(Name(static_cast<Wait>(status.wait))) + " of " + peer + where;
  switch (static_cast<Fault>(status.fault)) {
    case Fault::kTimeout:
      return self + " waited too long for " + awaited;
    case Fault::kAborted:
      return self + " was ended while it waited for " + awaited;
    case Fault::kPeerFailed:
      return self + ": " + peer + " failed first" + where;
    case Fault::kDisagrees:
      return self + " expects another shape or dtype than " + peer +
             " sent. The ranks disagree about the operation's shape or type, or run different programs";
    case Fault::kOtherCall:
      return self + " is in this call and " + peer + " in " + (call.empty() ? "another" : "another, " + call) +
             ". The processes run different programs, or collectives in another order";
    case Fault::kBadSizes:
      return self + ": " + WrongSizes(status);
    default:
      return self + " was given a step table that its kernel cannot run" + where;
  }
}

}  // namespace jaxring::cuda
