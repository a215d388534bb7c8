#include "tests/support/values.h"

#include <cmath>

#include "tests/support/reduce_reference.h"

namespace jaxring::test {

Buffer Input(const Settings& settings, int blocks, int rank, uint64_t seed) {
  const uint64_t elements = settings.block * blocks;
  Buffer buffer(elements * ElementBytes(settings.dtype));
  for (uint64_t i = 0; i < elements; ++i) {
    const uint64_t bits = Random(i ^ (static_cast<uint64_t>(rank) << 40) ^ (seed << 50));
    const double value = static_cast<double>(bits >> 11) * 0x1p-51 - 2;
    Write(settings.dtype, buffer.data() + i * ElementBytes(settings.dtype), {value, 0, bits});
  }
  return buffer;
}

std::vector<Buffer> Inputs(const Call& call, uint64_t seed) {
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < call.schedule().ranks(); ++rank) {
    inputs.push_back(Input(call.settings(), call.schedule().in_blocks, rank, seed));
  }
  return inputs;
}

std::vector<Buffer> Outputs(const Call& call) {
  std::vector<Buffer> outputs;
  const size_t bytes = call.settings().block * call.settings().result_bytes() * call.schedule().out_blocks;
  for (int rank = 0; rank < call.schedule().ranks(); ++rank) outputs.emplace_back(bytes);
  return outputs;
}

void Reference::Check(int rank, const Buffer& output) const {
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

int Reference::Source(int target) const {
  for (size_t i = 0; i < schedule_.perm.size(); i += 2) {
    if (schedule_.perm[i + 1] == target) return schedule_.perm[i];
  }
  return -1;
}

void Reference::Moved(int rank, int from, int to, const Buffer& output) const {
  const char* got = output.data() + to * bytes_;
  const char* want = rank < 0 ? nullptr : inputs_[rank].data() + from * bytes_;
  if (bytes_ == 0 || (want != nullptr && std::memcmp(got, want, bytes_) == 0)) return;
  for (size_t i = 0; i < bytes_; ++i) {
    if (got[i] != (want == nullptr ? 0 : want[i])) Wrong(i / element_);
  }
}

void Reference::Folded(int block, const Buffer& output) const {
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

void Reference::Wrong(uint64_t element) const {
  std::cerr << what_ << ": wrong at element " << element << std::endl;
  Fail(__FILE__, __LINE__, "the output is what the collective must give");
}

}  // namespace jaxring::test
