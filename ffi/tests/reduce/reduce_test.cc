// Compares every dtype, operation and instruction set of ffi/reduce with the slow reference.
#include <memory>
#include <random>
#include <string>

#include "reduce/kernels.h"
#include "tests/support/cases.h"
#include "tests/support/reduce_reference.h"

namespace jaxring::test {
namespace {

constexpr size_t kSizes[] = {0, 1, 3, 15, 16, 17, 63, 64, 65, 1000, 4097};
constexpr size_t kCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 33};
constexpr size_t kMostElements = 4097, kMostSources = 33;
constexpr const char* kSets[] = {"baseline", "avx2", "avx512"};
constexpr char kGuard = 0x5a;

// Elements between guard bytes; the first lies `skew` elements after a cache line's start.
class Guarded {
 public:
  Guarded(size_t bytes, size_t skew) : bytes_(bytes), skew_(64 + skew), space_(bytes + skew + 128 + 64, kGuard) {
    base_ = space_.data() + (64 - reinterpret_cast<uintptr_t>(space_.data()) % 64) % 64;
  }
  char* data() { return base_ + skew_; }
  void CheckGuards() {
    for (const char* at = base_; at < data(); ++at) CHECK_EQ(*at, kGuard);
    for (const char* at = data() + bytes_; at < space_.data() + space_.size(); ++at) CHECK_EQ(*at, kGuard);
  }

 private:
  size_t bytes_, skew_;
  std::vector<char> space_;
  char* base_;
};

void CheckElements(DType d, const char* got, const char* want, size_t n) {
  const size_t bytes = ElementBytes(d);
  if (n == 0 || std::memcmp(got, want, n * bytes) == 0) return;
  for (size_t i = 0; i < n; ++i) {
    if (SameElement(d, got + i * bytes, want + i * bytes)) continue;
    const Value a = Read(d, got + i * bytes), b = Read(d, want + i * bytes);
    std::cerr << InstructionSet() << " dtype " << static_cast<int>(d) << " element " << i << " of " << n << ": got "
              << a.re << "," << a.im << "," << a.bits << " want " << b.re << "," << b.im << "," << b.bits << std::endl;
    Fail(__FILE__, __LINE__, "elements are equal");
  }
}

// Small numbers, of which sums and products of 33 are exact. If `wild`, some have random bits instead.
Value Draw(DType d, ReduceOp op, bool wild, std::mt19937_64& random, char* to) {
  const size_t bytes = ElementBytes(d);
  const uint64_t any[2] = {random(), random()};
  if (d == DType::kBool) {
    *to = any[0] & 1;
  } else if (IsInteger(d) || (wild && any[1] % 32 == 0)) {
    std::memcpy(to, any, bytes);
  } else {
    static constexpr double kFactors[] = {1, -1, 2, 0.5, -2, -0.5, 1, 4, 0.25};
    auto draw = [&] { return op == ReduceOp::kProd ? kFactors[random() % 9] : static_cast<int>(random() % 17) - 8.0; };
    const double re = draw();
    Write(d, to, {re, IsComplex(d) ? std::floor(draw()) : 0});
    if (IsComplex(d) && op == ReduceOp::kProd) Write(d, to, {std::floor(re), std::floor(draw() / 2)});
  }
  return Read(d, to);
}

struct Sources {
  std::vector<std::vector<char>> bytes;
  std::vector<std::vector<Value>> values;
};

Sources DrawSources(DType d, ReduceOp op, bool wild, uint64_t seed) {
  std::mt19937_64 random(seed);
  Sources sources;
  for (size_t s = 0; s < kMostSources; ++s) {
    sources.bytes.emplace_back(kMostElements * ElementBytes(d));
    auto& values = sources.values.emplace_back();
    for (size_t i = 0; i < kMostElements; ++i) {
      values.push_back(Draw(d, op, wild, random, sources.bytes[s].data() + i * ElementBytes(d)));
    }
  }
  return sources;
}

struct Case {
  DType dtype;
  ReduceOp op;
  size_t n, count;
  std::vector<const void*> srcs;
  const char* want[2];  // without and with division by 3
};

void CheckFoldMany(const Kernels& kernels, const Case& c, size_t variant) {
  const size_t bytes = c.n * kernels.element_bytes;
  const size_t dst_count = variant % 3 ? 1 : 3, inside = variant / 3 % 2, stream = variant / 6 % 2;
  const size_t skew = variant / 12 % 4 * kernels.element_bytes, divide = variant / 48 % 2;
  std::vector<Guarded> outs;
  for (size_t k = 0; k < dst_count; ++k) outs.emplace_back(bytes, skew * (k + 1));
  std::vector<void*> dsts;
  std::vector<const void*> srcs = c.srcs;
  for (size_t k = 0; k < dst_count; ++k) {
    dsts.push_back(outs[k].data());
    const size_t s = (variant + 3 * k) % c.count;
    if (!inside || srcs[s] != c.srcs[s]) continue;
    if (bytes) std::memcpy(dsts[k], c.srcs[s], bytes);
    srcs[s] = dsts[k];
  }
  kernels.fold_many(dsts.data(), dst_count, srcs.data(), c.count, c.n, divide ? 3 : 0, stream);
  if (stream) StreamFence();
  for (Guarded& out : outs) {
    CheckElements(c.dtype, out.data(), c.want[divide], c.n);
    out.CheckGuards();
  }
}

void CheckSteps(const Kernels& kernels, const Case& c) {
  const size_t wide = kernels.accumulator_bytes;
  Guarded acc(c.n * wide, wide), other(c.n * wide, 3 * wide), out(c.n * kernels.element_bytes, kernels.element_bytes);
  kernels.load(acc.data(), c.srcs[0], c.n);
  for (size_t s = 1; s < c.count; ++s) kernels.fold(acc.data(), c.srcs[s], c.n);
  for (int divide = 0; divide < 2; ++divide) {
    kernels.store(out.data(), acc.data(), c.n, divide ? 3 : 0);
    CheckElements(c.dtype, out.data(), c.want[divide], c.n);
  }
  const DType acc_type = IsNarrow(c.dtype) ? DType::kF32 : c.dtype;
  kernels.load(other.data(), c.srcs[c.count / 2], c.n);
  std::vector<char> want(c.n * wide);
  for (size_t i = 0; i < c.n; ++i) {
    const Value a = Read(acc_type, acc.data() + i * wide), b = Read(acc_type, other.data() + i * wide);
    Write(acc_type, want.data() + i * wide, Combine(acc_type, c.op, a, b));
  }
  kernels.fold_partial(acc.data(), other.data(), c.n);
  CheckElements(acc_type, acc.data(), want.data(), c.n);
  for (Guarded* guarded : {&acc, &other, &out}) guarded->CheckGuards();
}

// The sources are copied to the ends of allocations of their own, so that a read past them is seen by a sanitizer.
void CheckSizes(DType d, ReduceOp op, const Sources& sources, size_t count, const std::vector<char> (&want)[2]) {
  static size_t variant = 0;
  for (size_t n : kSizes) {
    const size_t bytes = n * ElementBytes(d);
    std::vector<std::unique_ptr<char[]>> copies;
    Case c = {d, op, n, count, {}, {want[0].data(), want[1].data()}};
    for (size_t s = 0; s < count; ++s) {
      const size_t skew = s % 5 * ElementBytes(d);
      copies.push_back(std::make_unique<char[]>(bytes + skew));
      std::memcpy(copies[s].get() + skew, sources.bytes[s].data(), bytes);
      c.srcs.push_back(copies[s].get() + skew);
    }
    for (const char* set : kSets) {
      if (!ForceInstructionSet(set)) continue;
      const Kernels& kernels = *FindKernels(d, op);
      CheckSteps(kernels, c);
      for (int k = 0; k < 5; ++k) CheckFoldMany(kernels, c, variant += 7);
    }
  }
}

void CheckReductions(DType d, ReduceOp op, bool wild) {
  const Sources sources = DrawSources(d, op, wild, 1000 * static_cast<int>(d) + 10 * static_cast<int>(op) + wild);
  std::vector<Value> fold = sources.values[0];
  std::vector<char> want[2];
  for (auto& bytes : want) bytes.resize(kMostElements * ElementBytes(d));
  size_t done = 1;
  for (size_t count : kCounts) {
    for (; done < count; ++done) {
      for (size_t i = 0; i < kMostElements; ++i) fold[i] = Combine(d, op, fold[i], sources.values[done][i]);
    }
    for (size_t i = 0; i < kMostElements; ++i) {
      Write(d, want[0].data() + i * ElementBytes(d), fold[i]);
      Write(d, want[1].data() + i * ElementBytes(d), Divide(d, fold[i], 3));
    }
    CheckSizes(d, op, sources, count, want);
  }
  if (wild || IsInteger(d) || IsComplex(d) || op > ReduceOp::kProd) return;
  for (size_t i = 0; i < kMostElements; ++i) {  // the reference's own float arithmetic was exact
    long double exact = sources.values[0][i].re;
    for (size_t s = 1; s < kMostSources; ++s) {
      exact = op == ReduceOp::kSum ? exact + sources.values[s][i].re : exact * sources.values[s][i].re;
    }
    CHECK_EQ(static_cast<long double>(fold[i].re), exact);
  }
}

void CheckTable() {
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const DType dtype = static_cast<DType>(d);
      const ReduceOp op = static_cast<ReduceOp>(o);
      bool meant = op >= ReduceOp::kAnd ? IsInteger(dtype) : true;
      if (op == ReduceOp::kMin || op == ReduceOp::kMax) meant = !IsComplex(dtype);
      if (op <= ReduceOp::kProd) meant = dtype != DType::kBool;
      const Kernels* kernels = FindKernels(dtype, op);
      CHECK_EQ(kernels != nullptr, meant);
      if (!kernels) continue;
      CHECK_EQ(kernels->element_bytes, ElementBytes(dtype));
      CHECK_EQ(kernels->accumulator_bytes, IsNarrow(dtype) ? 4 : ElementBytes(dtype));
    }
  }
}

CASE("the table of each instruction set") {
  std::cout << "chosen: " << InstructionSet() << std::endl;
  CHECK(!ForceInstructionSet("none"));
  CHECK(ForceInstructionSet("baseline"));
  CHECK_EQ(std::string(InstructionSet()), "baseline");
  for (const char* set : kSets) {
    if (ForceInstructionSet(set)) CheckTable();
  }
}

CASE("copies") {
  for (size_t n : kSizes) {
    for (size_t skew : {0, 1, 8}) {
      for (bool stream : {false, true}) {
        std::vector<char> src(n * 5);
        for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<char>(i * 7 + n);
        Guarded a(src.size(), skew), b(src.size(), 2 * skew), c(src.size(), 0);
        void* dsts[] = {a.data(), b.data(), c.data()};
        for (size_t count : {1, 3}) {
          CopyMany(dsts, count, src.data(), src.size(), stream);
          StreamFence();
          for (size_t k = 0; k < count; ++k) CHECK(src.empty() || !std::memcmp(dsts[k], src.data(), src.size()));
        }
        for (Guarded* guarded : {&a, &b, &c}) guarded->CheckGuards();
      }
    }
  }
}

CASE("reductions of each dtype and operation") {
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      if (!FindKernels(static_cast<DType>(d), static_cast<ReduceOp>(o))) continue;
      for (bool wild : {false, true}) CheckReductions(static_cast<DType>(d), static_cast<ReduceOp>(o), wild);
    }
  }
}

}  // namespace
}  // namespace jaxring::test
