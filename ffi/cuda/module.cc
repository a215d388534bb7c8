// The Python module jaxring._native_cuda: the CUDA engine's host half. It has links to other processes of its own, and
// serves planning requests like jaxring._native. Built with JAXRING_FAKE_GPU it is _native_cuda_fake, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "ffi/bind_links.h"
#include "ffi/cuda/host/runtime.h"
#include "ffi/cuda/host/trial.h"
#include "ffi/xla/cuda_handlers.h"
#include "jaxring_config.h"
#if defined(JAXRING_FAKE_GPU)
#include "ffi/cuda/fake/gpu_fake.h"
#define JAXRING_MODULE _native_cuda_fake
#else
#define JAXRING_MODULE _native_cuda
#endif

namespace nb = nanobind;

namespace jaxring::cuda {
namespace {

Runtime& Cuda() {
  Runtime* runtime = RunningRuntime();
  if (runtime == nullptr) throw std::runtime_error("jaxring's CUDA engine is not running");
  return *runtime;
}

template <class T>
std::vector<T> FromBytes(const nb::bytes& bytes) {
  if (bytes.size() % sizeof(T) != 0) throw std::invalid_argument("a schedule table of the wrong size");
  std::vector<T> items(bytes.size() / sizeof(T));
  if (!items.empty()) std::memcpy(items.data(), bytes.c_str(), bytes.size());
  return items;
}

using RankTuple = std::tuple<int, int, int, std::string>;  // process, device, node, name
using WireTuple = std::pair<uint32_t, uint64_t>;           // slots, slot bytes
using LocationTuple = std::pair<uint64_t, uint64_t>;       // region, offset

std::shared_ptr<Communicator> MakeCommunicator(const std::string& name, const std::vector<RankTuple>& ranks,
                                               uint32_t lanes, const std::vector<WireTuple>& wires,
                                               uint64_t stage_bytes, double timeout_s) {
  CommunicatorSpec spec;
  spec.name = name;
  for (const auto& [process, device, node, text] : ranks) spec.ranks.push_back({process, device, node, text});
  if (wires.size() != kProtocols) throw std::invalid_argument("a wire's shape for each of the three protocols");
  for (int p = 0; p < kProtocols; ++p) spec.wires[p] = {wires[p].first, wires[p].second};
  spec.lanes = lanes;
  spec.stage_bytes = stage_bytes;
  spec.timeout_s = timeout_s;
  return Cuda().GetCommunicator(spec);
}

// What Python makes of a planning request, field by field, before there is a plan.
struct PlanBuilder {
  LaunchPlanSpec spec;
  std::vector<std::pair<RankTable, bool>> locals;

  void SetData(int dtype, int op, uint64_t divisor, uint64_t block_elements) {
    if (dtype < 0 || dtype >= kDTypeCount || op >= kReduceOpCount) throw std::invalid_argument("no such dtype or op");
    spec.dtype = static_cast<DType>(dtype);
    spec.reduces = op >= 0;
    if (op >= 0) spec.op = static_cast<ReduceOp>(op);
    if (op >= 0 && FindKernels(spec.dtype, spec.op) == nullptr) {
      throw std::invalid_argument("the operation has no meaning for the dtype");
    }
    spec.divisor = divisor;
    spec.block_elements = block_elements;
  }
  void AddLocal(int rank, const nb::bytes& steps, const nb::bytes& lane_begin, const nb::bytes& peers, bool members) {
    RankTable table;
    table.rank = rank;
    table.steps = FromBytes<Step>(steps);
    table.lane_begin = FromBytes<uint32_t>(lane_begin);
    table.peers = FromBytes<int32_t>(peers);
    if (table.lane_begin.size() != static_cast<size_t>(spec.nlanes) + 1 ||
        table.lane_begin.back() > table.steps.size()) {
      throw std::invalid_argument("a schedule table whose lanes do not fit its steps");
    }
    for (const Step& step : table.steps) {
      if (size_t{step.recv_begin} + step.recv_count > table.peers.size() ||
          size_t{step.send_begin} + step.send_count > table.peers.size()) {
        throw std::invalid_argument("a step that names peers past the table's end");
      }
      if (step.recv_count > kMaxStepPeers || step.send_count > kMaxStepPeers) {
        throw std::invalid_argument("a step of more than 64 sources or destinations");
      }
    }
    locals.emplace_back(std::move(table), members);
  }
  std::shared_ptr<LaunchPlan> Finish(std::shared_ptr<Communicator> communicator) const {
    for (const auto& [table, members] : locals) {
      if (members && communicator->Members(table.rank).size() > kMaxStepPeers) {
        throw std::invalid_argument("more than 65 ranks that share memory: set JAXRING_P2P_DISABLE=1 or use fewer");
      }
    }
    auto plan = std::make_shared<LaunchPlan>(std::move(communicator), spec);
    for (const auto& [table, members] : locals) plan->AddLocal(table, members);
    return plan;
  }
};

Location ToLocation(const LocationTuple& tuple) { return {tuple.first, tuple.second}; }
LocationTuple FromLocation(Location location) { return {location.region, location.offset}; }

}  // namespace
}  // namespace jaxring::cuda

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
#else
    info["cuda_architectures"] = Architectures();
#endif
    return info;
  });
  m.def("device_count", [] { return ThisGpu().DeviceCount(); }, "GPUs that this process sees; 0 without a driver.");
  m.def(
      "device",
      [](int device) {
        const DeviceInfo info = ThisGpu().Info(device);
        return std::make_tuple(info.name, info.uuid, info.major * 10 + info.minor, info.multiprocessors);
      },
      nb::arg("device"), "(name, uuid, compute capability as 90 for 9.0, multiprocessors)");
  m.def(
      "can_access", [](int device, int peer) { return ThisGpu().CanAccess(device, peer); }, nb::arg("device"),
      nb::arg("peer"), "Whether kernels of a device can address another one's memory.");
  m.def(
      "handlers",
      [] {
        nb::typed<nb::dict, nb::str, nb::capsule> handlers;
        handlers["instantiate"] = nb::capsule(reinterpret_cast<void*>(CudaInstantiate), "xla._CUSTOM_CALL_TARGET");
        handlers["collective"] = nb::capsule(reinterpret_cast<void*>(CudaCollective), "xla._CUSTOM_CALL_TARGET");
        handlers["done"] = nb::capsule(reinterpret_cast<void*>(CudaDone), "xla._CUSTOM_CALL_TARGET");
        return handlers;
      },
      "The CUDA handlers as capsules for jax.ffi.register_ffi_target.");
  m.def(
      "start", [](int process, uint32_t slot_bytes) { StartRuntime(StartEngine({1, slot_bytes, 0}), process); },
      nb::arg("process"), nb::arg("slot_bytes"), "Starts the engine, once. `slot_bytes`: of a link's message.");
  m.def(
      "abort",
      [](const std::string& reason, double timeout_s, bool goodbye) {
        if (RunningRuntime() != nullptr) RunningRuntime()->Abort(reason);
        if (RunningEngine() != nullptr) RunningEngine()->Abort(reason, timeout_s, goodbye);
      },
      nb::arg("reason"), nb::arg("timeout_s"), nb::arg("goodbye"), nb::call_guard<nb::gil_scoped_release>(),
      "Fails every operation, now and from now on.");
  m.def(
      "counters", [] { return RunningRuntime() == nullptr ? std::map<std::string, uint64_t>{} : Cuda().Counters(); },
      "What the engine has counted so far.");
  m.def(
      "take_faults", [](double timeout_s) { return Cuda().TakeFaults(timeout_s); }, nb::arg("timeout_s"),
      nb::call_guard<nb::gil_scoped_release>(), "Sentences of new faults, waiting timeout_s seconds for one.");
  m.def(
      "board", [] { return std::make_pair(Cuda().regions().board_fd(), Cuda().regions().bell_fd()); },
      "Descriptors of what peers on this host map: the list of this process's device memory, and its bell.");
  m.def(
      "attach_board",
      [](int process, const std::string& board, const std::string& bell) {
        Cuda().regions().Attach(process, board, bell);
      },
      nb::arg("process"), nb::arg("board_path"), nb::arg("bell_path"), "Maps a peer's board.");

  nb::class_<Request>(m, "PlanRequest", "A call site's wish for a plan, or, with group -1, for its device's partition.")
      .def_prop_ro("spec", [](const Request& r) { return r.site->spec().spec; })
      .def_prop_ro("ordinal", [](const Request& r) { return r.site->spec().ordinal; })
      .def_ro("group", &Request::group)
      .def_ro("device", &Request::device)
      .def_prop_ro("partitions", [](const Request& r) { return r.site->GroupPartitions(r.group); })
      .def(
          "arrived", [](const Request& r) { return r.site->Arrived(r.group); },
          "(rank, device as XLA numbers it) of this process's participants that have come so far.")
      .def(
          "resolve",
          [](const Request& r, std::shared_ptr<Communicator> communicator, const PlanBuilder& builder) {
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
      "next_request",
      [](double timeout_s) -> std::optional<Request> {
        Request request;
        if (!Cuda().NextRequest(timeout_s, &request)) return std::nullopt;
        return request;
      },
      nb::arg("timeout_s"), nb::call_guard<nb::gil_scoped_release>(),
      "The next planning request, or None after timeout_s seconds.");

  nb::class_<Communicator>(m, "Communicator", "A group of ranks and its memory on this process's devices.")
      .def("local", &Communicator::local, nb::arg("rank"))
      .def("members", &Communicator::Members, nb::arg("rank"))
      .def(
          "offer_arena", [](Communicator& c, int rank) { return FromLocation(c.OfferArena(rank)); }, nb::arg("rank"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "enter_arena",
          [](Communicator& c, int rank, int peer, LocationTuple theirs) {
            c.EnterArena(rank, peer, ToLocation(theirs));
          },
          nb::arg("rank"), nb::arg("peer"), nb::arg("theirs"), nb::call_guard<nb::gil_scoped_release>())
      .def("probe", &Communicator::Probe, nb::arg("rank"), nb::call_guard<nb::gil_scoped_release>())
      .def("verify", &Communicator::Verify, nb::arg("rank"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "connected",
          [](Communicator& c, int rank, int peer, int protocol) {
            return c.Connected(rank, peer, static_cast<cuda::Protocol>(protocol));
          },
          nb::arg("rank"), nb::arg("peer"), nb::arg("protocol"))
      .def(
          "offer_wire",
          [](Communicator& c, int rank, int peer, int protocol) {
            return FromLocation(c.OfferWire(rank, peer, static_cast<cuda::Protocol>(protocol)));
          },
          nb::arg("rank"), nb::arg("peer"), nb::arg("protocol"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "connect_wire",
          [](Communicator& c, int rank, int peer, int protocol, LocationTuple theirs) {
            c.ConnectWire(rank, peer, static_cast<cuda::Protocol>(protocol), ToLocation(theirs));
          },
          nb::arg("rank"), nb::arg("peer"), nb::arg("protocol"), nb::arg("theirs"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "connect_network",
          [](Communicator& c, int rank, int peer, int protocol) {
            c.ConnectNetwork(rank, peer, static_cast<cuda::Protocol>(protocol));
          },
          nb::arg("rank"), nb::arg("peer"), nb::arg("protocol"), nb::call_guard<nb::gil_scoped_release>());
  m.def("communicator", &MakeCommunicator, nb::arg("name"), nb::arg("ranks"), nb::arg("lanes"), nb::arg("wires"),
        nb::arg("stage_bytes"), nb::arg("timeout_s"), nb::call_guard<nb::gil_scoped_release>(),
        "The communicator of that name. `ranks`: (process, device or -1, node, name) of each; `wires`: (slots, slot "
        "bytes) for simple, ll and ll128.");

  nb::class_<PlanBuilder>(m, "PlanBuilder", "A plan in the making; resolve() freezes it.")
      .def(nb::init<>())
      .def(
          "set_identity",
          [](PlanBuilder& b, const std::string& what, double timeout_s, int root) {
            b.spec.what = what;
            b.spec.timeout_s = timeout_s;
            b.spec.root = root;
          },
          nb::arg("what"), nb::arg("timeout_s"), nb::arg("root"))
      .def("set_data", &PlanBuilder::SetData, nb::arg("dtype"), nb::arg("op"), nb::arg("divisor"),
           nb::arg("block_elements"))
      .def(
          "set_shape",
          [](PlanBuilder& b, int in_blocks, int out_blocks, int pieces, int scratch_chunks, int nlanes) {
            if (scratch_chunks > static_cast<int>(kMaxScratch)) {
              throw std::invalid_argument("the schedule needs more scratch than a kernel has");
            }
            b.spec.in_blocks = in_blocks;
            b.spec.out_blocks = out_blocks;
            b.spec.pieces = pieces;
            b.spec.scratch_chunks = scratch_chunks;
            b.spec.nlanes = nlanes;
          },
          nb::arg("in_blocks"), nb::arg("out_blocks"), nb::arg("pieces"), nb::arg("scratch_chunks"), nb::arg("nlanes"))
      .def(
          "set_kernel",
          [](PlanBuilder& b, int protocol, int fused, int threads, bool trap, bool zero_copy) {
            b.spec.protocol = static_cast<cuda::Protocol>(protocol);
            if (fused >= 0) b.spec.fused = static_cast<Fused>(fused);
            b.spec.threads = threads;
            b.spec.trap = trap;
            b.spec.zero_copy = zero_copy;
          },
          nb::arg("protocol"), nb::arg("fused"), nb::arg("threads"), nb::arg("trap"), nb::arg("zero_copy"))
      .def("add_local", &PlanBuilder::AddLocal, nb::arg("rank"), nb::arg("steps"), nb::arg("lane_begin"),
           nb::arg("peers"), nb::arg("members"));
  m.def(
      "run_trial",
      [](std::shared_ptr<Communicator> communicator, const PlanBuilder& builder, const std::vector<nb::bytes>& inputs,
         int launches) {
        std::vector<std::string> given;
        for (const nb::bytes& input : inputs) given.emplace_back(input.c_str(), input.size());
        TrialResult result;
        {
          nb::gil_scoped_release release;
          auto plan = builder.Finish(std::move(communicator));
          result = RunTrial(*plan, given, launches);
        }
        std::vector<nb::bytes> outputs;
        for (const std::string& output : result.outputs) outputs.emplace_back(output.data(), output.size());
        return std::make_pair(outputs, result.microseconds);
      },
      nb::arg("communicator"), nb::arg("plan"), nb::arg("inputs"), nb::arg("launches"),
      "Runs a plan whose ranks are all here, without XLA: (output of each rank, microseconds of a further launch).");
  m.def(
      "time_copy", [](int device, uint64_t bytes, int copies) { return TimeCopy(ThisGpu(), device, bytes, copies); },
      nb::arg("device"), nb::arg("bytes"), nb::arg("copies"), nb::call_guard<nb::gil_scoped_release>(),
      "Microseconds of a copy of so many bytes within a device.");
  BindLinks(m);
#if defined(JAXRING_FAKE_GPU)
  m.def(
      "fake_options",
      [](int devices, bool lose_writes, bool no_export, bool no_import, bool no_peer_access) {
        fake::options() = {devices, lose_writes, no_export, no_import, no_peer_access};
      },
      nb::arg("devices"), nb::arg("lose_writes") = false, nb::arg("no_export") = false, nb::arg("no_import") = false,
      nb::arg("no_peer_access") = false, "What the fake GPU is and does; before start.");
#endif
}
