#include "bind/bind_communicator.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/gpu_runtime.h"

namespace nb = nanobind;

namespace jaxring::cuda {

Runtime& Cuda() {
  Runtime* runtime = RunningRuntime();
  if (runtime == nullptr) throw std::runtime_error("jaxring's CUDA engine is not running");
  return *runtime;
}

void BindCommunicator(nb::module_& m) {
  nb::class_<RankInfo>(m, "Rank", "A rank of a communicator.")
      .def(
          "__init__",
          [](RankInfo* self, int process, int device, int domain, std::string name) {
            new (self) RankInfo{process, device, domain, std::move(name)};
          },
          nb::kw_only(), nb::arg("process"), nb::arg("device"), nb::arg("domain"), nb::arg("name"),
          "`device`: its number in this process; -1: the rank is in another one. Ranks of one `domain` address each "
          "other's memory. `name`: for messages.")
      .def_ro("process", &RankInfo::process)
      .def_ro("device", &RankInfo::device)
      .def_ro("domain", &RankInfo::domain)
      .def_ro("name", &RankInfo::name);
  nb::class_<WireShape>(m, "WireShape", "The slots of a connection, each way.")
      .def(
          "__init__",
          [](WireShape* self, uint32_t slots, uint64_t slot_bytes) { new (self) WireShape{slots, slot_bytes}; },
          nb::kw_only(), nb::arg("slots"), nb::arg("slot_bytes"));
  nb::class_<Location>(m, "Location", "A place in a rank's memory: a registered region, and an offset in bytes.")
      .def(
          "__init__", [](Location* self, uint64_t region, uint64_t offset) { new (self) Location{region, offset}; },
          nb::kw_only(), nb::arg("region"), nb::arg("offset"))
      .def_ro("region", &Location::region)
      .def_ro("offset", &Location::offset);
  nb::class_<Communicator>(m, "Communicator", "A group of ranks and its memory on this process's devices.")
      .def(
          "local", [](const Communicator& c, int rank) { return c.ranks().local(rank); }, nb::arg("rank"))
      .def(
          "members", [](const Communicator& c, int rank) { return c.ranks().Members(rank); }, nb::arg("rank"))
      .def(
          "offer_arena", [](Communicator& c, int rank) { return c.OfferArena(rank); }, nb::arg("rank"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "enter_arena", [](Communicator& c, int rank, int peer, Location theirs) { c.EnterArena(rank, peer, theirs); },
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
            return c.OfferWire(rank, peer, static_cast<cuda::Protocol>(protocol));
          },
          nb::arg("rank"), nb::arg("peer"), nb::arg("protocol"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "connect_wire",
          [](Communicator& c, int rank, int peer, int protocol, Location theirs) {
            c.ConnectWire(rank, peer, static_cast<cuda::Protocol>(protocol), theirs);
          },
          nb::arg("rank"), nb::arg("peer"), nb::arg("protocol"), nb::arg("theirs"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "offer_staging",
          [](Communicator& c, int rank, uint64_t bytes) { return c.memory().OfferStaging(rank, bytes); },
          nb::arg("rank"), nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "enter_staging",
          [](Communicator& c, int rank, int peer, Location theirs) { c.memory().EnterStaging(rank, peer, theirs); },
          nb::arg("rank"), nb::arg("peer"), nb::arg("theirs"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "offer_replacements",
          [](Communicator& c, int rank, uint64_t in_bytes, uint64_t out_bytes) {
            c.memory().OfferReplacement(rank, GroupMemory::Role::kInput, in_bytes);
            c.memory().OfferReplacement(rank, GroupMemory::Role::kOutput, out_bytes);
          },
          nb::arg("rank"), nb::arg("in_bytes"), nb::arg("out_bytes"), nb::call_guard<nb::gil_scoped_release>(),
          "Memory for launches whose own buffers the other processes have not mapped.")
      .def(
          "offer_multicast", [](Communicator& c, uint64_t bytes) { return c.multicast().Offer(bytes); },
          nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(), "By rank 0: a multicast object for all ranks.")
      .def(
          "join_multicast", [](Communicator& c, int rank, Location object) { c.multicast().Join(rank, object); },
          nb::arg("rank"), nb::arg("object"), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "bind_multicast", [](Communicator& c, int rank) { c.multicast().Bind(rank); }, nb::arg("rank"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "map_multicast", [](Communicator& c, int rank) { c.multicast().Map(rank); }, nb::arg("rank"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "probe_multicast", [](Communicator& c, int rank) { c.multicast().Probe(rank); }, nb::arg("rank"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "verify_multicast", [](Communicator& c, int rank) { c.multicast().Verify(rank); }, nb::arg("rank"),
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "connect_network",
          [](Communicator& c, int rank, int peer, int protocol) {
            return c.ConnectNetwork(rank, peer, static_cast<cuda::Protocol>(protocol));
          },
          nb::arg("rank"), nb::arg("peer"), nb::arg("protocol"), nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "communicator",
      [](const std::string& name, std::vector<RankInfo> ranks, uint32_t lanes, const std::vector<WireShape>& wires,
         uint64_t stage_bytes, double timeout_s) {
        CommunicatorSpec spec;
        if (wires.size() != spec.wires.size()) {
          throw std::invalid_argument("a communicator needs the shape of a wire for each of the three protocols, not " +
                                      std::to_string(wires.size()));
        }
        spec.name = name;
        spec.ranks = std::move(ranks);
        spec.lanes = lanes;
        std::copy(wires.begin(), wires.end(), spec.wires.begin());
        spec.stage_bytes = stage_bytes;
        spec.timeout_s = timeout_s;
        return Cuda().GetCommunicator(spec);
      },
      nb::arg("name"), nb::arg("ranks"), nb::arg("lanes"), nb::arg("wires"), nb::arg("stage_bytes"),
      nb::arg("timeout_s"), nb::call_guard<nb::gil_scoped_release>(),
      "The communicator of that name. `wires`: of each protocol, by its number.");
}

}  // namespace jaxring::cuda
