#include "bind/bind_links.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "transport/tcp/tls.h"
#include "transport/verbs/endpoint/verbs_device.h"

namespace jaxring {
namespace {

std::string Text(const nanobind::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// See jaxring.world.native.
void BindPaths(nanobind::module_& m) {
  namespace nb = nanobind;
  m.def(
      "paths_lost",
      [](double timeout_s) -> std::optional<std::vector<std::pair<std::string, std::string>>> {
        auto taken = Running().network().paths().TakeLost(timeout_s);
        if (!taken) return std::nullopt;
        std::vector<std::pair<std::string, std::string>> lost;
        for (Paths::Lost& each : *taken) lost.emplace_back(std::move(each.name), std::move(each.why));
        return lost;
      },
      nb::arg("timeout_s"), nb::call_guard<nb::gil_scoped_release>(),
      "Waits until connections that this process has dialled fail; returns the name of each, and how it failed.");
  m.def(
      "path_suspend",
      [](const std::string& path, bool dialled, uint64_t attempt) {
        Running().network().paths().Suspend({path, dialled}, attempt);
      },
      nb::arg("path"), nb::arg("dialled"), nb::arg("attempt"), nb::call_guard<nb::gil_scoped_release>(),
      "Begins an attempt to go on over another connection.");
  m.def(
      "path_drain",
      [](const std::string& path, bool dialled, uint64_t attempt) {
        return Running().network().paths().Drain({path, dialled}, attempt);
      },
      nb::arg("path"), nb::arg("dialled"), nb::arg("attempt"), nb::call_guard<nb::gil_scoped_release>(),
      "Closes the old connection; returns how many bytes have come.");
  m.def(
      "path_resume",
      [](const std::string& path, bool dialled, uint64_t attempt, int fd, const nb::bytes& key, double timeout_s,
         uint64_t received, bool detour) {
        const std::string secret = Text(key);
        nb::gil_scoped_release release;
        auto stream = MakeStream(Descriptor(fd), secret, dialled, timeout_s);
        Running().network().paths().Resume({path, dialled}, attempt, std::move(stream), received, detour);
      },
      nb::arg("path"), nb::arg("dialled"), nb::arg("attempt"), nb::arg("fd"), nb::arg("key"), nb::arg("timeout_s"),
      nb::arg("received"), nb::arg("detour"), "Goes on over a connected socket, which it takes over.");
  m.def(
      "path_fail",
      [](const std::string& path, const std::string& why) {
        Running().network().paths().Fail({path, true}, why, Ending::kNoGoodbye);
      },
      nb::arg("path"), nb::arg("why"), nb::call_guard<nb::gil_scoped_release>(),
      "Gives a connection up whose peer has ended.");
  m.def(
      "path_is_lost", [](const std::string& path) { return Running().network().paths().IsLost({path, true}); },
      nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
      "Whether a connection that has failed does not work again by itself.");
  m.def(
      "path_lives", [](const std::string& path) { return Running().network().paths().Lives({path, true}); },
      nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
      "Whether there is a connection of that name that has not ended.");
}

// The same for links that go on over other RDMA ports: see transport/core/movable.h.
void BindMovableLinks(nanobind::module_& m) {
  namespace nb = nanobind;
  m.def(
      "link_offer",
      [](const std::string& path, bool dialled, uint64_t attempt, const MovableLink::Place& place) {
        return Running().network().paths().Link({path, dialled})->Offer(attempt, place);
      },
      nb::arg("path"), nb::arg("dialled"), nb::arg("attempt"), nb::arg("place"),
      nb::call_guard<nb::gil_scoped_release>(),
      "Begins an attempt to go on at another place; returns the offer for the peer.");
  m.def(
      "link_prepare",
      [](const std::string& path, bool dialled, uint64_t attempt, const std::string& offer) {
        Running().network().paths().Link({path, dialled})->Prepare(attempt, offer);
      },
      nb::arg("path"), nb::arg("dialled"), nb::arg("attempt"), nb::arg("offer"),
      nb::call_guard<nb::gil_scoped_release>(), "Gives an attempt the peer's offer.");
  m.def(
      "link_try",
      [](const std::string& path, uint64_t attempt, double timeout_s) {
        Running().network().paths().Link({path, true})->Try(attempt, timeout_s);
      },
      nb::arg("path"), nb::arg("attempt"), nb::arg("timeout_s"), nb::call_guard<nb::gil_scoped_release>(),
      "Waits until something has crossed the new ports and come back.");
  m.def(
      "link_switch",
      [](const std::string& path, bool dialled, uint64_t attempt, const std::string& received) {
        return Running().network().paths().Link({path, dialled})->Switch(attempt, received);
      },
      nb::arg("path"), nb::arg("dialled"), nb::arg("attempt"), nb::arg("received"),
      nb::call_guard<nb::gil_scoped_release>(), "Goes on over the new ports; returns what has been received.");
  m.def(
      "link_take_over",
      [](const std::string& path, bool dialled, uint64_t attempt, int fd, bool detour) {
        const Paths::End end{path, dialled};
        Descriptor socket(fd);
        const std::shared_ptr<MovableLink> link = Running().network().paths().Link(end);
        link->TakeOver(attempt, socket.Release());
        Running().network().paths().Switched(end, detour);
      },
      nb::arg("path"), nb::arg("dialled"), nb::arg("attempt"), nb::arg("fd"), nb::arg("detour"),
      nb::call_guard<nb::gil_scoped_release>(), "Goes on with a new control connection, which it takes over.");
}

void BindConnectors(nanobind::module_& m) {
  namespace nb = nanobind;
  m.def(
      "connector_load",
      [](const std::string& transport, const std::string& what) {
        return Running().network().connectors().Load(transport, what);
      },
      nb::arg("transport"), nb::arg("what"), nb::call_guard<nb::gil_scoped_release>(),
      "Loads what a transport needs, once; returns a description of it.");
  m.def(
      "connector_offer",
      [](const std::string& transport, int peer, int channel, bool sending, const Connector::Place& place) {
        return Running().network().connectors().Offer(transport, {peer, channel, sending}, place);
      },
      nb::arg("transport"), nb::arg("peer"), nb::arg("channel"), nb::arg("sending"), nb::arg("place"),
      nb::call_guard<nb::gil_scoped_release>(),
      "Makes this end of a link at a place of the transport's; returns the offer for the peer.");
  m.def(
      "connector_prepare",
      [](int peer, int channel, bool sending, const std::string& offer) {
        Running().network().connectors().Prepare({peer, channel, sending}, offer);
      },
      nb::arg("peer"), nb::arg("channel"), nb::arg("sending"), nb::arg("offer"),
      nb::call_guard<nb::gil_scoped_release>(), "Gives this end of a link the peer's offer.");
  m.def(
      "connector_finish",
      [](int peer, int channel, bool sending, int fd, const nb::bytes& key, double timeout_s, const std::string& path) {
        const std::string secret = Text(key);
        nb::gil_scoped_release release;
        return Running().network().AddLink({peer, channel, sending}, Descriptor(fd), timeout_s, secret, path);
      },
      nb::arg("peer"), nb::arg("channel"), nb::arg("sending"), nb::arg("fd"), nb::arg("key"), nb::arg("timeout_s"),
      nb::arg("path"), "Puts a link into service and takes over its socket; returns a description of the link.");
  m.def(
      "connector_forget",
      [](int peer, int channel, bool sending) { Running().network().connectors().Forget({peer, channel, sending}); },
      nb::arg("peer"), nb::arg("channel"), nb::arg("sending"), nb::call_guard<nb::gil_scoped_release>(),
      "Drops this end of a link, which is not finished.");
}

void BindPorts(nanobind::module_& m) {
  namespace nb = nanobind;
  using verbs::GidEntry, verbs::PortInfo;
  nb::class_<GidEntry>(m, "RdmaGid", "An entry of an RDMA port's GID table: see jaxring.topology.rdma.Gid.")
      .def_ro("index", &GidEntry::index)
      .def_ro("type", &GidEntry::type)
      .def_ro("address", &GidEntry::address)
      .def_ro("interface", &GidEntry::netdev);
  nb::class_<PortInfo>(m, "RdmaPort", "A port of an RDMA device: see jaxring.topology.rdma.Port.")
      .def_ro("device", &PortInfo::device)
      .def_ro("port", &PortInfo::port)
      .def_ro("state", &PortInfo::state)
      .def_ro("layer", &PortInfo::layer)
      .def_ro("mtu", &PortInfo::mtu)
      .def_ro("mbps", &PortInfo::mbps)
      .def_ro("lid", &PortInfo::lid)
      .def_ro("interface", &PortInfo::netdev)
      .def_ro("pci", &PortInfo::pci)
      .def_ro("gids", &PortInfo::gids);
}

}  // namespace

ProcessEngine& Running() {
  ProcessEngine* engine = RunningEngine();
  if (engine == nullptr) throw std::runtime_error("jaxring's engine is not running");
  return *engine;
}

void BindLinks(nanobind::module_& m) {
  namespace nb = nanobind;
  m.def("tls_load", &LoadTls, "Opens OpenSSL's library, once; returns its version.");
  BindPaths(m);
  BindMovableLinks(m);
  BindPorts(m);
  m.def(
      "verbs_ports",
      [] {
        std::string why;
        std::vector<verbs::PortInfo> ports = verbs::ListPorts(&why);
        return std::make_pair(std::move(ports), std::move(why));
      },
      nb::call_guard<nb::gil_scoped_release>(), "This host's RDMA ports, and a description of what is wrong, or \"\".");
  BindConnectors(m);
  m.def(
      "control",
      [](int peer, int fd, bool dialled, const nb::bytes& key, double timeout_s, const std::string& path) {
        const std::string secret = Text(key);
        nb::gil_scoped_release release;
        Running().network().AddControl(peer, MakeStream(Descriptor(fd), secret, dialled, timeout_s), path, dialled);
      },
      nb::arg("peer"), nb::arg("fd"), nb::arg("dialled"), nb::arg("key"), nb::arg("timeout_s"), nb::arg("path"),
      "Takes over a connected socket as a control connection. Its end means that the peer's process has ended.");
}

}  // namespace jaxring
