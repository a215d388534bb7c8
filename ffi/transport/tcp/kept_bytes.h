// The bytes of a connection that its peer's kernel may not have, from the first such byte on. They can be written once
// more, to another connection.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace jaxring {

class KeptBytes {
 public:
  KeptBytes();

  // Whether so many more can be kept.
  bool HasRoom(size_t bytes) const { return written_ + bytes - first_ <= kept_.size(); }
  // Has room for so many more, if there is memory. Returns how many there is room for.
  size_t MakeRoom(size_t bytes);
  // The peer's kernel has acknowledged all that was written to the present connection, but for so many bytes.
  void Release(uint64_t unacknowledged);
  // Appends so many bytes of these, for which there is room.
  void Add(const iovec* parts, int count, size_t bytes);
  // What has not been written to the present connection, or the first part of it; and how much of that now is.
  std::string_view unsent() const;
  void Sent(size_t bytes) { sent_ += bytes; }
  bool all_sent() const { return sent_ == written_; }
  // On a new connection, whose other end has the first `received` bytes. False if these cannot be.
  bool GoOnFrom(uint64_t received);
  // The numbers of the first byte that is kept, and of the one after the last.
  uint64_t first() const { return first_; }
  uint64_t written() const { return written_; }

 private:
  void Put(const char* data, size_t bytes);

  // The byte with number n is at n modulo the size. Kept are those from `first_` to `written_`; those from `sent_` on
  // have not been written to the present connection.
  std::vector<char> kept_;
  uint64_t first_ = 0, sent_ = 0, written_ = 0;
};

}  // namespace jaxring
