#include "cuda/host/memory/descriptors.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "base/thread_name.h"

namespace jaxring::cuda {
namespace {

constexpr timeval kPatience = {10, 0};

struct Request {
  std::array<unsigned char, 16> secret;
  uint32_t number;
};
enum class Reply : uint32_t { kHere = 1, kGone, kRefused };

[[noreturn]] void Fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

class Closing {
 public:
  explicit Closing(int fd) : fd_(fd) {}
  ~Closing() {
    if (fd_ >= 0) close(fd_);
  }
  Closing(const Closing&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

int Socket() {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) Fail("socket");
  return fd;
}

// Abstract: it has no file, and goes away with the process.
socklen_t Address(const DescriptorSource& source, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t length = strnlen(source.name.data(), source.name.size());
  std::memcpy(address->sun_path + 1, source.name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

// Abstract sockets have no permissions. Peers open this process's memory under /proc, so they are of its user or root;
// others must not keep the server waiting for a request.
bool MayAsk(int connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == 0 || peer.uid == geteuid();
}

void Limit(int fd) {
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
}

// One word, and beside it a descriptor unless `fd` is -1.
struct Parcel {
  Reply reply;
  iovec data{&reply, sizeof reply};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  explicit Parcel(Reply r) : reply(r) {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  void Put(int fd) {
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  int Take() {
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) return -1;
    int fd;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
  }
};

}  // namespace

DescriptorServer::DescriptorServer(std::function<int(uint32_t)> make) : make_(std::move(make)) {
  uint64_t random[3];
  if (getrandom(random, sizeof random, 0) != sizeof random) Fail("getrandom");
  std::memcpy(source_.secret.data(), random + 1, source_.secret.size());
  std::snprintf(source_.name.data(), source_.name.size(), "jr%016llx", static_cast<unsigned long long>(random[0]));
  sockaddr_un address;
  const socklen_t length = Address(source_, &address);
  listening_ = Socket();
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0 || bind(listening_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listening_, 64) != 0) {
    const int error = errno;
    close(listening_);
    if (wake_ >= 0) close(wake_);
    throw std::system_error(error, std::generic_category(), "a socket for descriptors");
  }
  thread_ = std::thread([this] { Serve(); });
}

DescriptorServer::~DescriptorServer() {
  const uint64_t one = 1;
  if (write(wake_, &one, sizeof one) != sizeof one) std::terminate();  // cannot fail: nothing else writes to it
  thread_.join();
  close(listening_);
  close(wake_);
}

void DescriptorServer::Serve() {
  NameThread("jaxring-files");
  while (true) {
    pollfd events[] = {{listening_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) return;
    if (events[1].revents != 0) return;
    if ((events[0].revents & POLLIN) == 0) continue;
    const Closing connection(accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() >= 0 && MayAsk(connection.get())) Answer(connection.get());
  }
}

void DescriptorServer::Answer(int connection) {
  Limit(connection);
  Request request;
  if (recv(connection, &request, sizeof request, 0) != sizeof request) return;
  unsigned char differs = 0;  // constant time, so that the time does not reveal how many bytes are right
  for (size_t i = 0; i < request.secret.size(); ++i) differs |= request.secret[i] ^ source_.secret[i];
  const Closing fd(differs == 0 ? make_(request.number) : -1);
  Parcel parcel(differs != 0 ? Reply::kRefused : fd.get() < 0 ? Reply::kGone : Reply::kHere);
  if (fd.get() >= 0) {
    parcel.Put(fd.get());
  } else {
    parcel.message.msg_controllen = 0;
  }
  sendmsg(connection, &parcel.message, MSG_NOSIGNAL);  // if this fails, the client reports the error
}

int FetchDescriptor(const DescriptorSource& source, uint32_t number) {
  const Closing connection(Socket());
  Limit(connection.get());
  sockaddr_un address;
  const socklen_t length = Address(source, &address);
  if (connect(connection.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    throw std::runtime_error(std::string("the owner's socket does not answer: ") + std::strerror(errno));
  }
  const Request request{source.secret, number};
  if (send(connection.get(), &request, sizeof request, MSG_NOSIGNAL) != sizeof request) {
    throw std::runtime_error("the owner's socket accepts no request");
  }
  Parcel parcel(Reply::kRefused);
  if (recvmsg(connection.get(), &parcel.message, MSG_CMSG_CLOEXEC) != sizeof parcel.reply) {
    throw std::runtime_error("the owner did not send the descriptor in time");
  }
  const int fd = parcel.reply == Reply::kHere ? parcel.Take() : -1;
  if (fd >= 0) return fd;
  throw std::runtime_error(parcel.reply == Reply::kGone ? "the memory has been freed, or the driver does not export it"
                                                        : "the owner refused to send the descriptor");
}

}  // namespace jaxring::cuda
