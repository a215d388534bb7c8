// Saves the operands of failed operations, if the user asks for it. `jaxring trace replay` executes such an operation
// again.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "engine/operation/operation.h"

namespace jaxring {

class OperandSaver {
 public:
  // Writes files PREFIX0.operands, PREFIX1.operands, ... of mode 0600, with `limit` bytes of operands in all.
  OperandSaver(std::string prefix, uint64_t limit) : prefix_(std::move(prefix)), left_(limit) {}
  // Called before an operation begins: copies the operands that its results will overwrite.
  void Keep(Operation& op) const;
  // Called at its end, while its buffers are still valid. Returns a warning for the log if the file could not be
  // written, else "". Messages between two ranks are not saved.
  std::string Save(Operation& op, const std::string& why);

 private:
  bool Fits(Operation& op) const;

  const std::string prefix_;
  std::atomic<uint64_t> left_, number_{0};
};

}  // namespace jaxring
