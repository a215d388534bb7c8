// How processes of a host get file descriptors of each other: by a Unix socket, on demand. Device memory that the
// driver's virtual memory calls made is shared as a descriptor, which no number and no path under /proc stands for.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace jaxring::cuda {

// Where a process hands descriptors out, and the secret that a request must show. It stands in memory that only those
// processes map that may read and write this one's device memory anyway.
struct DescriptorSource {
  std::array<char, 24> name;  // of an abstract socket; ends with a zero
  std::array<unsigned char, 16> secret;
};

class DescriptorServer {
 public:
  // `make` opens the descriptor that a number stands for, or returns -1; it is closed once it was sent. Called on this
  // server's thread. Throws std::system_error where there can be no socket.
  explicit DescriptorServer(std::function<int(uint32_t)> make);
  ~DescriptorServer();
  DescriptorServer(const DescriptorServer&) = delete;
  const DescriptorSource& source() const { return source_; }

 private:
  void Serve();
  void Answer(int connection);

  std::function<int(uint32_t)> make_;
  DescriptorSource source_{};
  int listening_ = -1, wake_ = -1;
  std::thread thread_;
};

// The caller's own copy of a descriptor, to be closed by it. Waits some seconds at most. Throws std::runtime_error.
int FetchDescriptor(const DescriptorSource& source, uint32_t number);

}  // namespace jaxring::cuda
