// A small network plugin for tests, over TCP on 127.0.0.1, in versions 6 to 12 of NCCL's interface.
//
// It does what the interface allows but few plugins do: connect and the first isend return without a result, and
// transfers move only when they are tested. TEST_PLUGIN_BREAK breaks it: the name of a function that its tables then
// lack, "host" (devices without host memory), "devices" (an impossible number of devices) or "register" (no memory is
// registered).
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

namespace {

constexpr int kFine = 0, kSystemError = 2, kInvalidUsage = 5, kRemoteError = 6;

struct Connection;

struct Request {
  Connection* connection;
  char* data;
  uint64_t bytes;  // of the message, or of the room for it
  uint64_t moved = 0;
  int code = kFine;
  bool done = false;
};

struct Connection {
  Connection(int socket, bool sending) : fd(socket), sends(sending) {}
  int fd;
  bool sends;
  bool began = false;
  uint64_t length = 0;      // of the message at the front
  size_t length_moved = 0;  // bytes of `length` itself that were moved
  std::deque<Request*> queue;
};

struct Handle {
  sockaddr_in address;
  int fd;  // of a connection that is being made, plus one
};

std::string Broken() {
  const char* text = std::getenv("TEST_PLUGIN_BREAK");
  return text == nullptr ? "" : text;
}

int Devices(int* count) {
  *count = Broken() == "devices" ? -7 : 2;
  return kFine;
}

int Listen(int, void* handle, void** comm) {
  Handle here{};
  here.address.sin_family = AF_INET;
  here.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof here.address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  auto* address = reinterpret_cast<sockaddr*>(&here.address);
  if (fd < 0 || bind(fd, address, size) != 0 || listen(fd, 8) != 0 || getsockname(fd, address, &size) != 0) {
    if (fd >= 0) close(fd);
    return kSystemError;
  }
  std::memcpy(handle, &here, sizeof here);
  *comm = new Connection(fd, false);
  return kFine;
}

Connection* Made(int fd, bool sends) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return new Connection(fd, sends);
}

int Connect(int, void* handle, void** comm) {
  *comm = nullptr;
  Handle there;
  std::memcpy(&there, handle, sizeof there);
  if (there.fd == 0) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return kSystemError;
    there.fd = fd + 1;
    std::memcpy(handle, &there, sizeof there);
    auto* address = reinterpret_cast<sockaddr*>(&there.address);
    return connect(fd, address, sizeof there.address) == 0 || errno == EINPROGRESS ? kFine : kSystemError;
  }
  pollfd ready{there.fd - 1, POLLOUT, 0};
  if (poll(&ready, 1, 0) <= 0) return kFine;
  if (ready.revents & (POLLERR | POLLHUP)) return kRemoteError;
  *comm = Made(there.fd - 1, true);
  return kFine;
}

int Accept(void* listening, void** comm) {
  int fd = accept4(static_cast<Connection*>(listening)->fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  *comm = fd < 0 ? nullptr : Made(fd, false);
  return fd >= 0 || errno == EAGAIN ? kFine : kSystemError;
}

int Register(void*, void* data, size_t, int type, void** registration) {
  *registration = data;
  return type == 1 && Broken() != "register" ? kFine : kInvalidUsage;
}
int RegisterInt(void* comm, void* data, int bytes, int type, void** registration) {
  return bytes < 0 ? kInvalidUsage : Register(comm, data, static_cast<size_t>(bytes), type, registration);
}
int RegisterDmaBuf(void*, void*, size_t, int, uint64_t, int, void**) { return kInvalidUsage; }
int Deregister(void*, void*) { return kFine; }

int Post(void* comm, void* data, uint64_t bytes, void** request) {
  auto* connection = static_cast<Connection*>(comm);
  *request = nullptr;
  if (connection->sends && !connection->began) {
    connection->began = true;
    return kFine;
  }
  auto* made = new Request{connection, static_cast<char*>(data), bytes};
  connection->queue.push_back(made);
  *request = made;
  return kFine;
}

// Makes one transfer on the socket. Returns the bytes moved, 0 if it would block, or -1 with a code.
ssize_t Move(Connection* connection, char* data, size_t bytes, int* code) {
  ssize_t n =
      connection->sends ? send(connection->fd, data, bytes, MSG_NOSIGNAL) : recv(connection->fd, data, bytes, 0);
  if (n > 0) return n;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  *code = kRemoteError;
  return -1;
}

void Progress(Connection* connection) {
  while (!connection->queue.empty()) {
    Request* front = connection->queue.front();
    if (connection->sends) connection->length = front->bytes;
    auto* length = reinterpret_cast<char*>(&connection->length);
    while (connection->length_moved < sizeof connection->length) {
      ssize_t n = Move(connection, length + connection->length_moved,
                       sizeof connection->length - connection->length_moved, &front->code);
      if (n <= 0) return;
      connection->length_moved += static_cast<size_t>(n);
    }
    if (connection->length > front->bytes) front->code = kInvalidUsage;
    if (front->code != kFine) return;
    while (front->moved < connection->length) {
      ssize_t n = Move(connection, front->data + front->moved, connection->length - front->moved, &front->code);
      if (n <= 0) return;
      front->moved += static_cast<uint64_t>(n);
    }
    front->done = true;
    connection->length_moved = 0;
    connection->queue.pop_front();
  }
}

int Test(void* request, int* done, int* sizes) {
  auto* asked = static_cast<Request*>(request);
  if (!asked->done) Progress(asked->connection);
  if (asked->code != kFine) return asked->code;
  *done = asked->done;
  if (!asked->done) return kFine;
  if (sizes != nullptr) *sizes = static_cast<int>(asked->moved);
  delete asked;
  return kFine;
}

int Close(void* comm) {
  auto* connection = static_cast<Connection*>(comm);
  for (Request* request : connection->queue) delete request;
  close(connection->fd);
  delete connection;
  return kFine;
}

// The types and functions that differ between the versions.
int SendInt(void* comm, void* data, int bytes, int, void*, void** request) {
  return Post(comm, data, static_cast<uint64_t>(bytes), request);
}
int ReceiveInt(void* comm, int, void** data, int* sizes, int*, void**, void** request) {
  return Post(comm, data[0], static_cast<uint64_t>(sizes[0]), request);
}
int SendSize(void* comm, void* data, size_t bytes, int, void*, void** request) {
  return Post(comm, data, bytes, request);
}
int ReceiveSize(void* comm, int, void** data, size_t* sizes, int*, void**, void** request) {
  return Post(comm, data[0], sizes[0], request);
}
int SendProfiled(void* comm, void* data, size_t bytes, int, void*, void*, void** request) {
  return Post(comm, data, bytes, request);
}
int ReceiveProfiled(void* comm, int, void** data, size_t* sizes, int*, void**, void**, void** request) {
  return Post(comm, data[0], sizes[0], request);
}
int Flush(void*, int, void**, int*, void**, void**) { return kInvalidUsage; }
int ConnectPlain(int device, void* handle, void** comm, void**) { return Connect(device, handle, comm); }
int ConnectConfigured(int device, void* config, void* handle, void** comm, void**) {
  return config == nullptr ? kInvalidUsage : Connect(device, handle, comm);
}
int AcceptPlain(void* listening, void** comm, void**) { return Accept(listening, comm); }
int Context;
int ListenIn(void* context, int device, void* handle, void** comm) {
  return context == &Context ? Listen(device, handle, comm) : kInvalidUsage;
}
int ConnectIn(void* context, int device, void* handle, void** comm, void**) {
  return context == &Context ? Connect(device, handle, comm) : kInvalidUsage;
}
int InitPlain(void*) { return kFine; }
int InitProfiled(void*, void*) { return kFine; }
int InitIn(void** context, uint64_t, void* config, void*, void*) {
  *context = &Context;
  return config == nullptr ? kInvalidUsage : kFine;
}

// kMore: how many integers the version has between `ptrSupport` and `speed`.
template <size_t kMore>
int Properties(int device, void* out) {
  static char names[2][6] = {"tcp0", "tcp1"};
  auto* bytes = static_cast<char*>(out);
  auto put = [&](size_t at, auto value) { std::memcpy(bytes + at, &value, sizeof value); };
  constexpr size_t kLater = kMore * sizeof(int);
  put(0, names[device]);
  put(24, Broken() == "host" ? 2 : 1);
  put(32 + kLater, 1);
  put(40 + kLater, 64);
  put(44 + kLater, 1);
  return kFine;
}

struct Table {
  const char* name;
  std::array<void*, 21> calls;
};

template <class F>
void* P(F* function) {
  return reinterpret_cast<void*>(function);
}

Table Make(int version) {
  const bool in = version >= 11, profiled = version >= 10, wide = version >= 9, offloads = version >= 7;
  void* const connect = in              ? P(ConnectIn)
                        : version == 10 ? P(ConnectConfigured)
                        : offloads      ? P(ConnectPlain)
                                        : P(Connect);
  std::array<void*, 21> calls = {in         ? P(InitIn)
                                 : profiled ? P(InitProfiled)
                                            : P(InitPlain),
                                 P(Devices),
                                 wide           ? P(Properties<2>)
                                 : version == 8 ? P(Properties<1>)
                                                : P(Properties<0>),
                                 in ? P(ListenIn) : P(Listen),
                                 connect,
                                 offloads ? P(AcceptPlain) : P(Accept),
                                 version >= 8 ? P(Register) : P(RegisterInt),
                                 P(RegisterDmaBuf),
                                 P(Deregister),
                                 profiled ? P(SendProfiled)
                                 : wide   ? P(SendSize)
                                          : P(SendInt),
                                 profiled ? P(ReceiveProfiled)
                                 : wide   ? P(ReceiveSize)
                                          : P(ReceiveInt),
                                 P(Flush),
                                 P(Test),
                                 P(Close),
                                 P(Close),
                                 P(Close)};
  if (Broken() == "isend") calls[9] = nullptr;
  return {Broken() == "name" ? nullptr : "Test TCP", calls};
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))
extern "C" {
EXPORT Table ncclNetPlugin_v6 = Make(6);
EXPORT Table ncclNetPlugin_v7 = Make(7);
EXPORT Table ncclNetPlugin_v8 = Make(8);
EXPORT Table ncclNetPlugin_v9 = Make(9);
EXPORT Table ncclNetPlugin_v10 = Make(10);
EXPORT Table ncclNetPlugin_v11 = Make(11);
EXPORT Table ncclNetPlugin_v12 = Make(12);
}
