// Zero-filled pages of one process, or of several.
#pragma once

#include <cstddef>
#include <new>
#include <string>

namespace jaxring {

// What is thrown where the system gives no memory; in Python a MemoryError.
class OutOfMemory final : public std::bad_alloc {
 public:
  // `what` failed, and errno says why.
  explicit OutOfMemory(const std::string& what);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Unnamed, so that nothing is left of it after the last process, however it ended.
class SharedMemory {
 public:
  // This process's alone. `what` it is for, for errors: "slots of a link".
  static SharedMemory Anonymous(size_t bytes, const std::string& what);
  // A memfd that a peer can map.
  static SharedMemory Create(size_t bytes, const std::string& what);
  // Maps a peer's, by a path such as /proc/<pid>/fd/<n>. std::system_error where it cannot be opened or has another
  // size, which depends on settings.
  static SharedMemory Open(const std::string& path, size_t bytes, const std::string& what);
  // The same memory without owning it.
  SharedMemory View() const { return {data_, bytes_, -1, false}; }
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  SharedMemory(char* data, size_t bytes, int fd, bool owned) : data_(data), bytes_(bytes), fd_(fd), owned_(owned) {}
  // Takes `fd`.
  static SharedMemory Map(size_t bytes, int flags, int fd, const std::string& what);
  char* data_;
  size_t bytes_;
  int fd_;
  bool owned_;
};

}  // namespace jaxring
