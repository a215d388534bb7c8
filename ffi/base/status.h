// The result of an operation. Codes are those of absl and XLA, and reach Python as `JaxRuntimeError: CODE: message`.
#pragma once

#include <string>
#include <utility>

namespace jaxring {

enum class Code {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15
};

struct Status {
  Code code = Code::kOk;
  std::string message;
  bool ok() const { return code == Code::kOk; }
  // Cold: the compiler moves the code that leads here out of the hot path.
  [[gnu::cold]] static Status Error(Code code, std::string message) { return {code, std::move(message)}; }
};

}  // namespace jaxring
