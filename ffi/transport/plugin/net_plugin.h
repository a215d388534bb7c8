// NCCL's network plugins (libnccl-net*.so): loaded at run time, called through one interface whatever their version.
//
// A plugin exports a table of functions, ncclNetPlugin_v6 to _v12; the versions differ in a few arguments. In all of
// them, no call blocks, connections go one way, messages match in the order of posting, and a request that cannot be
// started yet is returned as nullptr and must be tried again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace jaxring {

class NetPlugin {
 public:
  static constexpr int kNewest = 12, kOldest = 6;
  static constexpr size_t kHandleBytes = 128;

  // Loads `name`: a path, a file name, or NAME of libnccl-net-NAME.so. Uses the newest version that it exports, or
  // version `only`. Throws std::runtime_error that says why the plugin cannot be used.
  static std::shared_ptr<NetPlugin> Load(const std::string& name, int only = 0);

  // "Name (ABI v10, 2 devices: a, b)".
  std::string Describe() const;
  const std::string& name() const { return name_; }
  int version() const { return version_; }
  int devices() const { return static_cast<int>(device_names_.size()); }

  // Each throws std::runtime_error if the plugin returns an error. After nullptr, call it again.
  void* Listen(int device, char* handle);
  void* Connect(int device, char* handle);
  void* Accept(void* listen_comm);
  void* Register(void* comm, void* data, size_t bytes);
  void* Send(void* comm, void* data, size_t bytes, void* registration);
  void* Receive(void* comm, void* data, size_t bytes, void* registration);
  // Returns whether a request is done, and then the received length in `*bytes`.
  bool Test(void* request, size_t* bytes);
  // These do not throw, since they clean up.
  void Deregister(void* comm, void* registration);
  void CloseListen(void* comm);
  void CloseSend(void* comm);
  void CloseReceive(void* comm);

 private:
  // The calls in the order of the table, which is the same in every version; later ones have more at the end.
  enum Call {
    kInit,
    kDevices,
    kProperties,
    kListen,
    kConnect,
    kAccept,
    kRegister,
    kRegisterDmaBuf,
    kDeregister,
    kSend,
    kReceive,
    kFlush,
    kTest,
    kCloseSend,
    kCloseReceive,
    kCloseListen,
    kCalls
  };
  struct Table {
    const char* name;
    std::array<void*, kCalls> calls;
  };
  NetPlugin() = default;
  void Begin(const Table& table, int version, const std::string& file);
  template <class... Arguments>
  int Raw(Call call, Arguments... arguments);
  template <class... Arguments>
  void Do(Call call, const char* what, Arguments... arguments);

  Mutex mutex_;  // one call at a time, since it is not documented whether plugins are thread-safe
  std::string name_;
  int version_ = 0;
  std::array<void*, kCalls> calls_{};
  void* context_ = nullptr;  // from v11 on
  std::vector<std::string> device_names_;
};

}  // namespace jaxring
