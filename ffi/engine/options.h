// What an engine is started with.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "transport/core/faults.h"

namespace jaxring {

struct EngineOptions {
  int threads = 2;  // the workers
  uint32_t slot_bytes = 128 * 1024;
  int64_t spin_us = 20;  // how long a launching thread or a worker polls before it sleeps
  // How long the launching thread polls for the peers of a small operation if its process has one rank. Handing the
  // wait to a worker costs three wake-ups, some 60 us in all. Ranks in the same step of a program are seldom further
  // apart.
  int64_t patience_us = 300;
  FaultPlan faults{};  // faults to inject into the connections to other processes, for tests
  // What to do about NaN or infinity in operands and results: nothing, a warning (`Engine::warnings`), an error.
  enum class NonFinite { kIgnore, kWarn, kFail } non_finite = NonFinite::kIgnore;
  bool checksums = false;  // of every message's payload; the same in all processes
  // The link to a peer's host counts as cut when that host has acknowledged nothing for so long.
  double link_timeout_s = 10;
  // When to warn of an operation that waits (`NextStall`): after this time, then after 6 times and 36 times this time,
  // and so on; 0: never.
  double stall_warning_s = 0;
  std::string trace_file{};     // the file of the recorder's ring; empty: unnamed shared memory
  std::string record_hint{};    // appended to errors that involve other processes: how to read the flight records
  std::string operand_files{};  // path prefix of the files that hold the operands of failed operations
  uint64_t operand_bytes = 0;   // limit of all these files together; 0: save nothing
  // No threads at all, and nothing of the system's: the caller runs workers, completions and ticks itself, as a
  // simulation does.
  bool stepped = false;

  // The error message that the caller of an operation gets.
  std::string ToMessage(const Status& status) const {
    const bool of_others =
        status.code == Code::kDeadlineExceeded || status.code == Code::kUnavailable || status.code == Code::kDataLoss;
    return of_others && !record_hint.empty() ? status.message + " " + record_hint : status.message;
  }
};

}  // namespace jaxring
