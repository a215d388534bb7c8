#include "transport/tcp/kept_bytes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace jaxring {
namespace {

// The peer's kernel may have the last of these bytes without its process being able to read them: an incomplete record
// of TLS.
constexpr uint64_t kSlack = 32 * 1024;
constexpr uint64_t kSmallest = 128 * 1024;

}  // namespace

KeptBytes::KeptBytes() : kept_(kSmallest) {}

size_t KeptBytes::MakeRoom(size_t bytes) {
  if (HasRoom(bytes)) return bytes;
  try {
    std::vector<char> more(std::bit_ceil(written_ + bytes - first_));
    for (uint64_t n = first_; n < written_;) {
      const size_t from = n % kept_.size(), to = n % more.size();
      const size_t part = std::min({static_cast<size_t>(written_ - n), kept_.size() - from, more.size() - to});
      std::memcpy(more.data() + to, kept_.data() + from, part);
      n += part;
    }
    kept_ = std::move(more);
  } catch (const std::bad_alloc&) {
    return kept_.size() - static_cast<size_t>(written_ - first_);
  }
  return bytes;
}

void KeptBytes::Release(uint64_t unacknowledged) {
  const uint64_t needed = unacknowledged + kSlack;
  if (sent_ > needed) first_ = std::max(first_, sent_ - needed);
}

void KeptBytes::Put(const char* data, size_t bytes) {
  const size_t at = written_ % kept_.size(), part = std::min(bytes, kept_.size() - at);
  std::memcpy(kept_.data() + at, data, part);
  std::memcpy(kept_.data(), data + part, bytes - part);
  written_ += bytes;
}

void KeptBytes::Add(const iovec* parts, int count, size_t bytes) {
  for (int i = 0; i < count && bytes > 0; ++i) {
    const size_t part = std::min(bytes, parts[i].iov_len);
    Put(static_cast<const char*>(parts[i].iov_base), part);
    bytes -= part;
  }
}

std::string_view KeptBytes::unsent() const {
  const size_t at = sent_ % kept_.size();
  return {kept_.data() + at, std::min(static_cast<size_t>(written_ - sent_), kept_.size() - at)};
}

bool KeptBytes::GoOnFrom(uint64_t received) {
  if (received < first_ || received > written_) return false;
  first_ = sent_ = received;
  return true;
}

}  // namespace jaxring
