// What an operation ended with. Codes are the absl/XLA ones, which reach Python as `JaxRuntimeError: CODE: message`.
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
  // Whatever leads to a call of it is compiled apart from what all operations run through.
  [[gnu::cold]] static Status Error(Code code, std::string message) { return {code, std::move(message)}; }
};

}  // namespace jaxring
