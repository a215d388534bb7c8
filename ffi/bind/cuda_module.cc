// The Python module jaxring._native_cuda: the host part of the CUDA engine. It serves planning requests like
// jaxring._native, whose network it uses. With JAXRING_FAKE_GPU it is built as _native_cuda_fake, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind_communicator.h"
#include "bind/bind_cuda_plans.h"
#include "bind/shared_network.h"
#include "cuda/host/gpu_runtime.h"
#include "jaxring_config.h"
#include "xla/cuda_handlers.h"
#if defined(JAXRING_FAKE_GPU)
#include "cuda/sim/fake/gpu_fake.h"
#define JAXRING_MODULE _native_cuda_fake
#else
#define JAXRING_MODULE _native_cuda
#endif

namespace nb = nanobind;

NB_MODULE(JAXRING_MODULE, m) {
  using namespace jaxring;
  using namespace jaxring::cuda;
  m.doc() = "The host half of jaxring's CUDA engine.";
  nb::set_leak_warnings(false);  // the engine keeps communicators until the process ends
  m.def("build_info", [] {
    std::map<std::string, std::string> info;
    info["cuda_version"] = JAXRING_CUDA_VERSION;
#if defined(JAXRING_FAKE_GPU)
    info["cuda_architectures"] = "none (fake GPU)";
    const bool multicast = true;
#else
    info["cuda_architectures"] = Architectures();
    const bool multicast = MulticastCompiled();
#endif
    info["cuda_transports"] = std::string("p2p ipc network copy_engine") + (multicast ? " nvls" : "");
    info["nvtx"] = NvtxVersion();
    return info;
  });
  m.def("device_count", [] { return ThisGpu().devices.Count(); }, "GPUs that this process sees; 0 without a driver.");
  nb::class_<DeviceInfo>(m, "Device", "A GPU as the driver describes it.")
      .def_ro("name", &DeviceInfo::name)
      .def_ro("uuid", &DeviceInfo::uuid)
      .def_prop_ro(
          "capability", [](const DeviceInfo& info) { return info.major * 10 + info.minor; },
          "The compute capability: 90 for 9.0.")
      .def_ro("multiprocessors", &DeviceInfo::multiprocessors)
      .def_ro("busid", &DeviceInfo::busid, "The PCI bus id as in /sys, or \"\".");
  m.def(
      "device", [](int device) { return ThisGpu().devices.Info(device); }, nb::arg("device"),
      "Describes a GPU that this process sees.");
  m.def(
      "can_access", [](int device, int peer) { return ThisGpu().devices.CanAccess(device, peer); }, nb::arg("device"),
      nb::arg("peer"), "Whether kernels of a device can address another one's memory.");
  m.def(
      "stores_whole_lines", [](int device, int peer) { return ThisGpu().devices.StoresWholeLines(device, peer); },
      nb::arg("device"), nb::arg("peer"), "Whether 128-byte stores of a device arrive in another one's memory whole.");
  m.def(
      "has_multicast", [](int device) { return ThisGpu().multicast.Supported(device); }, nb::arg("device"),
      "Whether the driver reports multicast (NVLS) for a device.");
  m.def(
      "prepare", [](int device) { Cuda().Prepare(device); }, nb::arg("device"),
      nb::call_guard<nb::gil_scoped_release>(), "Loads the kernels for a GPU of this process; after start.");
  m.def(
      "handlers",
      [] {
        nb::typed<nb::dict, nb::str, nb::capsule> handlers;
        for (const Handler& handler : Handlers()) {
          handlers[handler.name] = nb::capsule(reinterpret_cast<void*>(handler.call), "xla._CUSTOM_CALL_TARGET");
        }
        return handlers;
      },
      "The CUDA handlers as capsules for jax.ffi.register_ffi_target.");
  m.def(
      "start",
      [](int process, const nb::capsule& network, bool checksums) {
        const SharedNetwork& shared = SharedNetwork::Of(network);
        StartRuntime(*shared.network, checksums, process, shared.wake_planner);
      },
      nb::arg("process"), nb::arg("network"), nb::arg("checksums") = false,
      "Starts the engine, once, on the network of jaxring._native.");
  m.def(
      "abort",
      [](const std::string& reason, bool tell) {
        if (RunningRuntime() != nullptr) RunningRuntime()->Abort(reason, tell);
      },
      nb::arg("reason"), nb::arg("tell"), nb::call_guard<nb::gil_scoped_release>(),
      "Fails all operations in flight and all later ones; with `tell` in the processes that take part in them, too.");
  m.def(
      "allow_direct",
      [](int device, std::vector<std::string> nics) { Cuda().proxy().AllowDirect(device, std::move(nics)); },
      nb::arg("device"), nb::arg("nics"), nb::call_guard<nb::gil_scoped_release>(),
      "Names the NICs that may address the device's memory (GPUDirect RDMA).");
  m.def(
      "counters", [] { return RunningRuntime() == nullptr ? std::map<std::string, uint64_t>{} : Cuda().Counters(); },
      nb::call_guard<nb::gil_scoped_release>(), "What the engine has counted so far.");
  m.def(
      "take_faults", [] { return Cuda().TakeFaults(); }, nb::call_guard<nb::gil_scoped_release>(),
      "Sentences of new faults.");
  m.def(
      "region_directory",
      [] { return std::make_pair(Cuda().regions().directory_fd(), Cuda().regions().doorbell_fd()); },
      "Descriptors of what peers on this host map: the directory of its device memory regions, and its doorbell.");
  m.def(
      "attach_region_directory",
      [](int process, const std::string& directory, const std::string& doorbell) {
        Cuda().regions().Attach(process, directory, doorbell);
      },
      nb::arg("process"), nb::arg("directory_path"), nb::arg("doorbell_path"), nb::call_guard<nb::gil_scoped_release>(),
      "Maps a peer's region directory.");

  nb::class_<Request>(m, "PlanRequest",
                      "A call site's request for a plan or, with group -1, for its device's partition.")
      .def_prop_ro("spec", [](const Request& r) { return r.site->spec().spec; })
      .def_prop_ro("ordinal", [](const Request& r) { return r.site->spec().ordinal; })
      .def_ro("group", &Request::group)
      .def_ro("device", &Request::device)
      .def_prop_ro("partitions", [](const Request& r) { return r.site->GroupPartitions(r.group); })
      .def(
          "arrived", [](const Request& r) { return r.site->Arrived(r.group); },
          "The device, as XLA numbers it, of each rank of this process that has arrived so far.")
      .def(
          "share_buffers",
          [](const Request& r, Communicator& communicator) { return r.site->ShareBuffers(r.group, communicator); },
          nb::arg("communicator"), nb::call_guard<nb::gil_scoped_release>(),
          "Has other processes map the buffers of the ranks that have arrived: how each rank's are shared.")
      .def(
          "resolve",
          [](const Request& r, std::shared_ptr<Communicator> communicator, PlanBuilder& builder) {
            r.site->Resolve(r.group, builder.Finish(std::move(communicator)));
          },
          nb::arg("communicator"), nb::arg("plan"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "reject",
          [](const Request& r, int code, const std::string& message) {
            auto status = jaxring::Status::Error(static_cast<Code>(code), message);
            if (r.group < 0) {
              r.site->Identify(r.device, 0, status);
            } else {
              r.site->Reject(r.group, status);
            }
          },
          nb::arg("code"), nb::arg("message"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "identify", [](const Request& r, int partition) { r.site->Identify(r.device, partition, {}); },
          nb::arg("partition"));
  m.def(
      "next_request", [] { return Cuda().NextRequest(); }, nb::call_guard<nb::gil_scoped_release>(),
      "The next planning request, or None. jaxring._native.next_request ends its wait when there is one, or a fault.");

  BindCommunicator(m);
  BindPlans(m);
#if defined(JAXRING_FAKE_GPU)
  m.def(
      "fake_options",
      [](int devices, bool lose_writes, bool no_export, bool no_import, bool no_peer_access, bool no_multicast,
         bool no_bind, bool lose_multicast, bool no_direct) {
        fake::options() = {devices,        lose_writes,  no_export, false,          no_import,
                           no_peer_access, no_multicast, no_bind,   lose_multicast, no_direct};
      },
      nb::arg("devices"), nb::arg("lose_writes") = false, nb::arg("no_export") = false, nb::arg("no_import") = false,
      nb::arg("no_peer_access") = false, nb::arg("no_multicast") = false, nb::arg("no_bind") = false,
      nb::arg("lose_multicast") = false, nb::arg("no_direct") = false, "What the fake GPU is and does; before start.");
#endif
}
