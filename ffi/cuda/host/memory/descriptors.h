// Passes file descriptors between processes of a host, by a Unix socket, on demand. Device memory made by the driver's
// virtual memory calls is shared as such a descriptor, which cannot be opened by a path under /proc.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace jaxring::cuda {

// The socket of a process's descriptor server, and the secret that a request must contain. Only processes that may read
// and write this one's device memory anyway can map the memory in which this is stored.
struct DescriptorSource {
  std::array<char, 24> name;  // of an abstract socket; ends with a zero
  std::array<unsigned char, 16> secret;
};

class DescriptorServer {
 public:
  // `make` opens the descriptor of a number, or returns -1. The server calls it on its thread and closes the descriptor
  // after sending it. Throws std::system_error if the socket cannot be made.
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

// Fetches a copy of a descriptor, which the caller closes. Waits at most some seconds. Throws std::runtime_error.
int FetchDescriptor(const DescriptorSource& source, uint32_t number);

}  // namespace jaxring::cuda
