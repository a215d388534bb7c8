#include "transport/core/faults.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace jaxring {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}

}  // namespace

FaultPlan FaultPlan::From(const std::map<std::string, double>& numbers) {
  FaultPlan plan;
  for (const auto& [name, number] : numbers) {
    if (name == "seed") {
      plan.seed = static_cast<uint64_t>(number);
      continue;
    }
    double* const field = name == "drop"        ? &plan.drop
                          : name == "delay"     ? &plan.delay
                          : name == "duplicate" ? &plan.duplicate
                          : name == "truncate"  ? &plan.truncate
                          : name == "corrupt"   ? &plan.corrupt
                          : name == "reorder"   ? &plan.reorder
                          : name == "reset"     ? &plan.reset
                          : name == "delay_us"  ? &plan.delay_us
                          : name == "data_only" ? &plan.data_only
                                                : nullptr;
    if (field == nullptr) throw std::invalid_argument("there is no fault named " + name);
    *field = number;
  }
  return plan;
}

Faults::Choice Faults::Next() {
  const uint64_t number = count_.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint64_t random = Mix(Mix(plan_.seed + 1) ^ Mix(link_ << 32 ^ number));
  double left = static_cast<double>(random >> 11) * 0x1p-53;
  Fault fault = Fault::kNone;
  for (auto [share, kind] : {std::pair{plan_.drop, Fault::kDrop},
                             {plan_.delay, Fault::kDelay},
                             {plan_.duplicate, Fault::kDuplicate},
                             {plan_.truncate, Fault::kTruncate},
                             {plan_.corrupt, Fault::kCorrupt},
                             {plan_.reorder, Fault::kReorder},
                             {plan_.reset, Fault::kReset}}) {
    if (left < share) {
      fault = kind;
      break;
    }
    left -= share;
  }
  const uint64_t where = Mix(random + 1);
  if (fault != Fault::kNone) injected_.fetch_add(1, std::memory_order_relaxed);
  if (fault == Fault::kDelay) {
    const double part = static_cast<double>(where >> 11) * 0x1p-53;
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(part * plan_.delay_us));
  }
  return {fault, where};
}

ssize_t FaultyStream::Write(const iovec* parts, int count) {
  const auto [fault, random] = faults_.Next();
  if (held_.empty() && (fault == Fault::kNone || fault == Fault::kDelay)) return inner_->Write(parts, count);
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  const auto size = static_cast<ssize_t>(bytes.size());
  if (bytes.empty()) return 0;
  auto put = [this](const std::string& what) { return inner_->Stream::Write(what.data(), what.size()); };
  switch (fault) {
    case Fault::kDrop:
      return size;
    case Fault::kDuplicate:
      return std::min(size, put(bytes + bytes));
    case Fault::kTruncate:
      bytes.resize(random % bytes.size());
      return bytes.empty() ? size : put(bytes) < 0 ? -1 : size;
    case Fault::kCorrupt:
      bytes[random / 8 % bytes.size()] ^= static_cast<char>(1 << random % 8);
      return put(bytes);
    case Fault::kReorder:
      held_ += bytes;
      return size;
    case Fault::kReset:
      shutdown(fd(), SHUT_RDWR);
      errno = ECONNRESET;
      return -1;
    case Fault::kNone:
    case Fault::kDelay:
      break;
  }
  const ssize_t n = put(bytes);
  // If the socket takes only part of this, the rest is lost, which is a fault, too.
  if (n == size && put(held_) != 0) held_.clear();
  return n;
}

std::unique_ptr<Stream> WithFaults(std::unique_ptr<Stream> stream, const FaultPlan& plan, uint64_t link) {
  if (!plan.any()) return stream;
  return std::make_unique<FaultyStream>(std::move(stream), plan, link);
}

}  // namespace jaxring
