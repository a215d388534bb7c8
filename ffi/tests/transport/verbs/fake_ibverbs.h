// A libibverbs of two RDMA devices, "fake0" and "fake1", on which queue pairs of this process write to each other: see
// fake_ibverbs.cc. A test loads it and says by this what the devices do.
#pragma once

#include <array>
#include <atomic>
#include <functional>

namespace jaxring::test {

struct FakeVerbs {
  // Whether each device is silent: what is sent by it arrives nowhere and does not complete.
  std::array<std::atomic<bool>, 2> silent{};
  // Memory cannot be registered with it.
  std::array<std::atomic<bool>, 2> no_memory{};
  // Called before a queue pair is destroyed.
  std::function<void()> on_destroy;
  // How many writes have been posted.
  std::atomic<int> posted{0};
  // Has the queue pair that was made last fail, as one does whose peer does not answer.
  void (*fail_newest)() = nullptr;
};

}  // namespace jaxring::test
