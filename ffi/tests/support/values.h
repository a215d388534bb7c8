// Buffers with guards, inputs, and the expected results of collectives.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/job.h"

namespace jaxring::test {

// A buffer that is aligned to 64 bytes, as XLA's are, with guards around it. AddressSanitizer has guards of its own.
class Buffer {
 public:
  explicit Buffer(size_t size, int fill = 0xCD) : size_(size) {
    void* memory = nullptr;
    CHECK(posix_memalign(&memory, 64, 2 * kGuard + size + (size == 0)) == 0);
    memory_.reset(static_cast<char*>(memory));
    std::memset(memory_.get(), kGuardByte, 2 * kGuard + size);
    std::memset(data(), fill, size);
  }
  ~Buffer() {
    if (memory_) CheckGuards();
  }
  Buffer(Buffer&&) = default;
  char* data() { return memory_.get() + kGuard; }
  const char* data() const { return memory_.get() + kGuard; }
  size_t size() const { return size_; }
  bool operator==(const Buffer& o) const { return size_ == o.size_ && std::memcmp(data(), o.data(), size_) == 0; }
  void CheckGuards() const {
    for (size_t i = 0; i < kGuard; ++i) {
      CHECK(memory_.get()[i] == kGuardByte);
      CHECK(memory_.get()[kGuard + size_ + i] == kGuardByte);
    }
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kGuard = 0;
#else
  static constexpr size_t kGuard = 128;
#endif
  static constexpr char kGuardByte = 0x5A;
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  size_t size_;
  std::unique_ptr<char, Free> memory_;
};

inline uint64_t Random(uint64_t x) {
  x = (x + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 29)) * 0x94D049BB133111EBull;
  return x ^ (x >> 32);
}

// A rank's input: arbitrary integers, or floats in [-2, 2).
Buffer Input(const Settings& settings, int blocks, int rank, uint64_t seed);
std::vector<Buffer> Inputs(const Call& call, uint64_t seed);
std::vector<Buffer> Outputs(const Call& call);

class Reference {
 public:
  Reference(const Call& call, const std::vector<Buffer>& inputs)
      : Reference(call.Describe(), call.schedule(), call.settings(), inputs) {}
  Reference(std::string what, const Schedule& schedule, const Settings& settings, const std::vector<Buffer>& inputs)
      : what_(std::move(what)),
        schedule_(schedule),
        settings_(settings),
        inputs_(inputs),
        element_(ElementBytes(settings_.dtype)),
        bytes_(settings_.block * element_) {}

  void Check(int rank, const Buffer& output) const;

 private:
  int Source(int target) const;
  // Block `to` of the output is block `from` of a rank's input, or zeros if there is no such rank.
  void Moved(int rank, int from, int to, const Buffer& output) const;
  // The output is the fold of all ranks' input block: exactly for integers, min and max, otherwise up to rounding.
  void Folded(int block, const Buffer& output) const;
  [[noreturn]] void Wrong(uint64_t element) const;

  const std::string what_;
  const Schedule& schedule_;
  const Settings& settings_;
  const std::vector<Buffer>& inputs_;
  const size_t element_, bytes_;
};

}  // namespace jaxring::test
