// What an engine counts.
#pragma once

#include <atomic>
#include <cstdint>

namespace jaxring {

struct EngineCounters {
  std::atomic<int64_t> sites{0}, in_flight{0};  // in_flight: local ranks that wait for the end of an operation
  std::atomic<uint64_t> operations{0}, inline_operations{0}, failures{0}, sleeps{0}, spills{0}, moves{0};
  std::atomic<uint64_t> sent_bytes{0};  // payload of messages to other processes, of operations that have ended
};

}  // namespace jaxring
