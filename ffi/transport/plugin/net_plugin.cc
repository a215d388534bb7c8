#include "transport/plugin/net_plugin.h"

#include <dlfcn.h>

#include <climits>
#include <stdexcept>

namespace jaxring {
namespace {

constexpr int kPointerHost = 1;  // what `ptrSupport` and registrations call host memory
constexpr int kUndefined = -1;
constexpr int kMostDevices = 1024;

// The first fields of each version's properties, as far as they are used here.
struct PropertiesV6 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support;
  int speed, port;
  float latency;
  int most_connections, most_receives;
};
struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support, global_registration;
  int speed, port;
  float latency;
  int most_connections, most_receives;
};
struct PropertiesV9 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointer_support, global_registration, force_flush;
  int speed, port;
  float latency;
  int most_connections, most_receives;
};
struct Config {
  int traffic_class = kUndefined;
};

constexpr std::array<const char*, 16> kNames = {
    "init",    "devices", "getProperties", "listen", "connect", "accept",    "regMr",     "regMrDmaBuf",
    "deregMr", "isend",   "irecv",         "iflush", "test",    "closeSend", "closeRecv", "closeListen"};

// The plugin's log function. It drops all messages: errors are taken from the return codes.
void Quiet(int, unsigned long, const char*, int, const char*, ...) {}
int NoProfiler(void**, int, void*, int64_t, void*) { return 0; }

}  // namespace

// Calls with the signature of the arguments: the caller passes those of the plugin's version.
template <class... Arguments>
int NetPlugin::Raw(Call call, Arguments... arguments) {
  MutexLock lock(mutex_);
  return reinterpret_cast<int (*)(Arguments...)>(calls_[call])(arguments...);
}

template <class... Arguments>
void NetPlugin::Do(Call call, const char* what, Arguments... arguments) {
  if (int code = Raw(call, arguments...)) {
    throw std::runtime_error("network plugin " + name_ + ": " + what + " failed: " + kNames[call] + " returned " +
                             std::to_string(code));
  }
}

std::shared_ptr<NetPlugin> NetPlugin::Load(const std::string& name, int only) {
  void* library = nullptr;
  std::string reasons;
  for (const std::string& file : {name, "libnccl-net-" + name + ".so"}) {
    if (library == nullptr) library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (library == nullptr) throw std::runtime_error("the network plugin " + name + " cannot be loaded: " + reasons);
  for (int version = kNewest; version >= kOldest; --version) {
    if (only != 0 && version != only) continue;
    const std::string symbol = "ncclNetPlugin_v" + std::to_string(version);
    auto* table = static_cast<const Table*>(dlsym(library, symbol.c_str()));
    if (table == nullptr) continue;
    std::shared_ptr<NetPlugin> plugin(new NetPlugin);
    plugin->Begin(*table, version, name);
    return plugin;
  }
  std::string others;
  for (int version : {5, 4, 13, 14}) {
    const std::string symbol = "ncclNetPlugin_v" + std::to_string(version);
    if (dlsym(library, symbol.c_str()) != nullptr) others += (others.empty() ? "; it has " : ", ") + symbol;
  }
  throw std::runtime_error("the network plugin " + name + " exports none of ncclNetPlugin_v6 to ncclNetPlugin_v12" +
                           others);
}

void NetPlugin::Begin(const Table& table, int version, const std::string& file) {
  auto refuse = [&](const std::string& why) {
    throw std::runtime_error("the network plugin " + file + " is not used: its ABI v" + std::to_string(version) +
                             " is broken: " + why);
  };
  if (table.name == nullptr) refuse("it has no name");
  for (int call = 0; call < kCalls; ++call) {
    if (call != kRegisterDmaBuf && call != kFlush && table.calls[call] == nullptr) {
      refuse(std::string("it has no ") + kNames[call]);
    }
  }
  name_ = table.name;
  version_ = version;
  calls_ = table.calls;
  Config config;
  if (version >= 11) {
    Do(kInit, "starting", &context_, uint64_t{1}, &config, &Quiet, &NoProfiler);
  } else if (version == 10) {
    Do(kInit, "starting", &Quiet, &NoProfiler);
  } else {
    Do(kInit, "starting", &Quiet);
  }
  int count = 0;
  Do(kDevices, "counting devices", &count);
  if (count < 0 || count > kMostDevices) refuse("it counts " + std::to_string(count) + " devices");
  if (count == 0) throw std::runtime_error("the network plugin " + file + " finds no device on this host");
  for (int device = 0; device < count; ++device) {
    // Larger than any version's, so that fields of a newer plugin fit, too.
    alignas(16) std::array<char, 1024> properties{};
    Do(kProperties, "describing a device", device, static_cast<void*>(properties.data()));
    const auto* oldest = reinterpret_cast<const PropertiesV6*>(properties.data());
    const auto* old = reinterpret_cast<const PropertiesV8*>(properties.data());
    const auto* now = reinterpret_cast<const PropertiesV9*>(properties.data());
    const int support = now->pointer_support;
    const int receives = version >= 9 ? now->most_receives : version == 8 ? old->most_receives : oldest->most_receives;
    if (!(support & kPointerHost)) refuse("device " + std::to_string(device) + " does not take host memory");
    if (receives < 1) refuse("device " + std::to_string(device) + " takes no receives");
    device_names_.push_back(now->name != nullptr ? now->name : std::to_string(device));
  }
}

std::string NetPlugin::Describe() const {
  std::string text = name_ + " (ABI v" + std::to_string(version_) + ", " + std::to_string(devices()) + " device(s):";
  for (const std::string& device : device_names_) text += " " + device;
  return text + ")";
}

void* NetPlugin::Listen(int device, char* handle) {
  void* comm = nullptr;
  void* where = handle;
  if (version_ >= 11) {
    Do(kListen, "listening", context_, device, where, &comm);
  } else {
    Do(kListen, "listening", device, where, &comm);
  }
  if (comm == nullptr) throw std::runtime_error("network plugin " + name_ + ": listen made nothing");
  return comm;
}

void* NetPlugin::Connect(int device, char* handle) {
  void *comm = nullptr, *offloaded = nullptr, *where = handle;
  Config config;
  if (version_ >= 11) {
    Do(kConnect, "connecting", context_, device, where, &comm, &offloaded);
  } else if (version_ == 10) {
    Do(kConnect, "connecting", device, &config, where, &comm, &offloaded);
  } else if (version_ >= 7) {
    Do(kConnect, "connecting", device, where, &comm, &offloaded);
  } else {
    Do(kConnect, "connecting", device, where, &comm);
  }
  return comm;
}

void* NetPlugin::Accept(void* listen_comm) {
  void *comm = nullptr, *offloaded = nullptr;
  if (version_ >= 7) {
    Do(kAccept, "accepting", listen_comm, &comm, &offloaded);
  } else {
    Do(kAccept, "accepting", listen_comm, &comm);
  }
  return comm;
}

void* NetPlugin::Register(void* comm, void* data, size_t bytes) {
  void* registration = nullptr;
  if (version_ >= 8) {
    Do(kRegister, "registering memory", comm, data, bytes, kPointerHost, &registration);
  } else if (bytes <= INT_MAX) {
    Do(kRegister, "registering memory", comm, data, static_cast<int>(bytes), kPointerHost, &registration);
  } else {
    throw std::runtime_error("network plugin " + name_ + ": ABI v" + std::to_string(version_) +
                             " registers less than 2 GiB: lower JAXRING_BUFFSIZE");
  }
  return registration;
}

void* NetPlugin::Send(void* comm, void* data, size_t bytes, void* registration) {
  void* request = nullptr;
  if (version_ >= 10) {
    Do(kSend, "sending", comm, data, bytes, 0, registration, static_cast<void*>(nullptr), &request);
  } else if (version_ == 9) {
    Do(kSend, "sending", comm, data, bytes, 0, registration, &request);
  } else {
    Do(kSend, "sending", comm, data, static_cast<int>(bytes), 0, registration, &request);
  }
  return request;
}

void* NetPlugin::Receive(void* comm, void* data, size_t bytes, void* registration) {
  void *request = nullptr, *profile = nullptr;
  int tag = 0, small = static_cast<int>(bytes);
  if (version_ >= 10) {
    Do(kReceive, "receiving", comm, 1, &data, &bytes, &tag, &registration, &profile, &request);
  } else if (version_ == 9) {
    Do(kReceive, "receiving", comm, 1, &data, &bytes, &tag, &registration, &request);
  } else {
    Do(kReceive, "receiving", comm, 1, &data, &small, &tag, &registration, &request);
  }
  return request;
}

bool NetPlugin::Test(void* request, size_t* bytes) {
  int done = 0;
  std::array<int, 8> sizes{};  // one is used; grouped receives would have more
  // The return code is checked first: a message that is too long is done and an error.
  Do(kTest, "a transfer", request, &done, sizes.data());
  *bytes = static_cast<size_t>(sizes[0] < 0 ? 0 : sizes[0]);
  return done != 0;
}

void NetPlugin::Deregister(void* comm, void* registration) { Raw(kDeregister, comm, registration); }
void NetPlugin::CloseListen(void* comm) { Raw(kCloseListen, comm); }
void NetPlugin::CloseSend(void* comm) { Raw(kCloseSend, comm); }
void NetPlugin::CloseReceive(void* comm) { Raw(kCloseReceive, comm); }

}  // namespace jaxring
