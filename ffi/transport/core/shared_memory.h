// Zero-filled pages of one process, or shared by several.
#pragma once

#include <cstddef>
#include <new>
#include <string>

namespace jaxring {

// Thrown where the system gives no memory. Python gets a MemoryError.
class OutOfMemory final : public std::bad_alloc {
 public:
  // `what`: the action that failed; errno says why.
  explicit OutOfMemory(const std::string& what);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// The memory has no name, so none of it is left after the last process has ended, however it ended.
class SharedMemory {
 public:
  // Memory of this process alone. `what`: what it is for, named in errors ("slots of a link").
  static SharedMemory Anonymous(size_t bytes, const std::string& what);
  // A memfd that a peer can map.
  static SharedMemory Create(size_t bytes, const std::string& what);
  // Maps a peer's memory by a path such as /proc/<pid>/fd/<n>. Throws std::system_error if it cannot be opened or has
  // another size, which depends on settings.
  static SharedMemory Open(const std::string& path, size_t bytes, const std::string& what);
  // The same memory, not owned.
  SharedMemory View() const { return {data_, bytes_, -1, false}; }
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  SharedMemory(char* data, size_t bytes, int fd, bool owned) : data_(data), bytes_(bytes), fd_(fd), owned_(owned) {}
  // Owns `fd` from now on.
  static SharedMemory Map(size_t bytes, int flags, int fd, const std::string& what);
  char* data_;
  size_t bytes_;
  int fd_;
  bool owned_;
};

}  // namespace jaxring
