// Saves the operands of operations that fail, by choice: `jaxring trace replay` plays such an operation again.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "engine/operation/operation.h"

namespace jaxring {

class OperandSaver {
 public:
  // Files PREFIX0.operands, PREFIX1.operands, ... of mode 0600, and of `limit` bytes in all.
  OperandSaver(std::string prefix, uint64_t limit) : prefix_(std::move(prefix)), left_(limit) {}
  // Before an operation begins: keeps what its results will overwrite.
  void Keep(Operation& op) const;
  // At its end, before its buffers are given back. Returns a sentence if that could not be done, for the log. Messages
  // between two ranks are not saved.
  std::string Save(Operation& op, const std::string& why);

 private:
  bool Fits(Operation& op) const;

  const std::string prefix_;
  std::atomic<uint64_t> left_, number_{0};
};

}  // namespace jaxring
