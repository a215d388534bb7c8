// Buffers with guards, inputs, and what collectives must make of them.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ffi/tests/check.h"
#include "ffi/tests/job.h"
#include "ffi/tests/reduce_reference.h"

namespace jaxring::test {

// Bytes at a multiple of 64, as XLA's are, with guards around them. AddressSanitizer guards better, by itself.
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

// A rank's input: any integers; floats in [-2, 2).
inline Buffer Input(const Settings& settings, int blocks, int rank, uint64_t seed) {
  const uint64_t elements = settings.block * blocks;
  Buffer buffer(elements * ElementBytes(settings.dtype));
  for (uint64_t i = 0; i < elements; ++i) {
    const uint64_t bits = Random(i ^ (static_cast<uint64_t>(rank) << 40) ^ (seed << 50));
    const double value = static_cast<double>(bits >> 11) * 0x1p-51 - 2;
    Write(settings.dtype, buffer.data() + i * ElementBytes(settings.dtype), {value, 0, bits});
  }
  return buffer;
}

inline std::vector<Buffer> Inputs(const Call& call, uint64_t seed) {
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < call.schedule().ranks(); ++rank) {
    inputs.push_back(Input(call.settings(), call.schedule().in_blocks, rank, seed));
  }
  return inputs;
}

inline std::vector<Buffer> Outputs(const Call& call) {
  std::vector<Buffer> outputs;
  const size_t bytes = call.settings().block * ElementBytes(call.settings().dtype) * call.schedule().out_blocks;
  for (int rank = 0; rank < call.schedule().ranks(); ++rank) outputs.emplace_back(bytes);
  return outputs;
}

class Reference {
 public:
  Reference(const Call& call, const std::vector<Buffer>& inputs)
      : call_(call),
        schedule_(call.schedule()),
        settings_(call.settings()),
        inputs_(inputs),
        element_(ElementBytes(settings_.dtype)),
        bytes_(settings_.block * element_) {}

  void Check(int rank, const Buffer& output) const {
    output.CheckGuards();
    const std::string& what = schedule_.collective;
    const int n = schedule_.ranks(), root = schedule_.root;
    if (what == "all_reduce") return Folded(0, output);
    if (what == "reduce_scatter") return Folded(rank, output);
    if (what == "reduce") return rank == root ? Folded(0, output) : Moved(-1, 0, 0, output);
    if (what == "broadcast") return Moved(root, 0, 0, output);
    if (what == "scatter") return Moved(root, rank, 0, output);
    if (what == "permute") return Moved(Source(rank), 0, 0, output);
    for (int r = 0; r < n; ++r) {
      if (what == "all_gather") Moved(r, 0, r, output);
      if (what == "gather") Moved(rank == root ? r : -1, 0, r, output);
      if (what == "all_to_all") Moved(r, rank, r, output);
    }
  }

 private:
  int Source(int target) const {
    for (size_t i = 0; i < schedule_.perm.size(); i += 2) {
      if (schedule_.perm[i + 1] == target) return schedule_.perm[i];
    }
    return -1;
  }
  // Block `to` of the output is block `from` of a rank's input, or zeros where there is no such rank.
  void Moved(int rank, int from, int to, const Buffer& output) const {
    const char* got = output.data() + to * bytes_;
    const char* want = rank < 0 ? nullptr : inputs_[rank].data() + from * bytes_;
    if (bytes_ == 0 || (want != nullptr && std::memcmp(got, want, bytes_) == 0)) return;
    for (size_t i = 0; i < bytes_; ++i) {
      if (got[i] != (want == nullptr ? 0 : want[i])) Wrong(i / element_);
    }
  }
  // The output is the fold of all ranks' input block: exactly for integers and extremes, else as rounding allows.
  void Folded(int block, const Buffer& output) const {
    const DType d = settings_.dtype;
    const bool exact = IsInteger(d) || settings_.op != ReduceOp::kSum;
    for (uint64_t i = 0; i < settings_.block; ++i) {
      Value want;
      double magnitude = 0;
      for (int rank = 0; rank < schedule_.ranks(); ++rank) {
        const Value next = Read(d, inputs_[rank].data() + block * bytes_ + i * element_);
        magnitude += std::fabs(next.re);
        want = rank == 0 ? next : exact ? Combine(d, settings_.op, want, next) : Value{want.re + next.re};
      }
      const char* got = output.data() + i * element_;
      if (exact) {
        char bits[16];
        Write(d, bits, want);
        if (!SameElement(d, got, bits)) Wrong(i);
        continue;
      }
      const double divisor = settings_.divisor == 0 ? 1 : static_cast<double>(settings_.divisor);
      const double value = want.re / divisor, rounding = IsNarrow(d) ? 0x1p-8 : 0;
      const double allowed = (magnitude * 0x1p-22 + std::fabs(want.re) * rounding) / divisor + 1e-30;
      if (!(std::fabs(Read(d, got).re - value) <= allowed)) Wrong(i);
    }
  }
  [[noreturn]] void Wrong(uint64_t element) const {
    std::cerr << call_.Describe() << ": wrong at element " << element << std::endl;
    Fail(__FILE__, __LINE__, "the output is what the collective must give");
  }

  const Call& call_;
  const Schedule& schedule_;
  const Settings& settings_;
  const std::vector<Buffer>& inputs_;
  const size_t element_, bytes_;
};

}  // namespace jaxring::test
