#include "bind/bind_links.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "transport/shm/shm_link.h"
#include "transport/tcp/tls.h"
#include "transport/verbs/verbs_device.h"

namespace jaxring {
namespace {

// Takes ownership of `fd`. With a key it does a TLS handshake, without the GIL.
std::unique_ptr<Stream> MakeStream(int fd, const nanobind::bytes& key, bool dialled, double timeout_s) {
  if (key.size() == 0) return std::make_unique<Stream>(fd);
  const std::string secret(key.c_str(), key.size());
  nanobind::gil_scoped_release release;
  return MakeTlsStream(fd, secret, dialled, timeout_s);
}

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
        auto stream = MakeStream(fd, key, dialled, timeout_s);
        nb::gil_scoped_release release;
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
        std::shared_ptr<MovableLink> link;
        try {
          link = Running().network().paths().Link(end);
        } catch (...) {
          close(fd);
          throw;
        }
        link->TakeOver(attempt, fd);
        Running().network().paths().Switched(end, detour);
      },
      nb::arg("path"), nb::arg("dialled"), nb::arg("attempt"), nb::arg("fd"), nb::arg("detour"),
      nb::call_guard<nb::gil_scoped_release>(), "Goes on with a new control connection, which it takes over.");
  m.def(
      "link_discard", [](const std::string& path) { Running().network().paths().Link({path, true})->Discard(); },
      nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
      "Destroys the ports that the link has left; may take seconds.");
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

Engine& Running() {
  Engine* engine = RunningEngine();
  if (engine == nullptr) throw std::runtime_error("jaxring's engine is not running");
  return *engine;
}

void BindLinks(nanobind::module_& m) {
  namespace nb = nanobind;
  m.def("bell_fd", [] { return Running().network().doorbell().fd(); }, "The memfd of this process's doorbell.");
  m.def(
      "blocks_fd", [] { return Running().network().links().Blocks()->fd(); },
      "The memfd of the blocks that several processes of this host can read. The engine keeps the descriptor.");
  m.def(
      "shm_create",
      [](int peer, int channel) {
        Engine& engine = Running();
        auto link = MakeShmSendLink(engine.network().links().slot_bytes());
        int fd = link->memory.fd();
        // Pending until shm_ring: a message published without the peer's doorbell would not wake the peer.
        engine.network().links().AddPending(peer, channel, std::move(link));
        return fd;
      },
      nb::arg("peer"), nb::arg("channel"), "Makes a sending link's shared memory; returns its descriptor.");
  m.def(
      "shm_ring",
      [](int peer, int channel, const std::string& bell_path) {
        Running().network().links().CompletePending(peer, channel, Doorbell::Open(bell_path));
      },
      nb::arg("peer"), nb::arg("channel"), nb::arg("bell_path"), "Puts a link that the peer has mapped into service.");
  m.def(
      "shm_attach",
      [](int peer, int channel, const std::string& ring_path, const std::string& blocks_path,
         const std::string& bell_path) {
        Engine& engine = Running();
        const uint32_t slot_bytes = engine.network().links().slot_bytes();
        engine.network().links().AddRecv(peer, channel, OpenShmRecvLink(ring_path, blocks_path, bell_path, slot_bytes));
      },
      nb::arg("peer"), nb::arg("channel"), nb::arg("ring_path"), nb::arg("blocks_path"), nb::arg("bell_path"),
      "Maps a peer's sending link.");
  m.def(
      "tcp_prepare",
      [](int peer, int channel, bool sending) { Running().network().links().Prepare(peer, channel, sending); },
      nb::arg("peer"), nb::arg("channel"), nb::arg("sending"),
      "Allocates the memory of a link before it is negotiated.");
  m.def(
      "tcp_attach",
      [](int peer, int channel, int fd, bool sending, const nb::bytes& key, double timeout_s, const std::string& path) {
        Running().network().AddTcp(peer, channel, MakeStream(fd, key, sending, timeout_s), sending, path);
      },
      nb::arg("peer"), nb::arg("channel"), nb::arg("fd"), nb::arg("sending"), nb::arg("key"), nb::arg("timeout_s"),
      nb::arg("path"), "Makes a link of a connected socket, which it takes over. With a key it uses TLS.");
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
  m.def(
      "offered_load",
      [](const std::string& transport, const std::string& what) {
        return Running().network().transport(transport).Load(what);
      },
      nb::arg("transport"), nb::arg("what"), nb::call_guard<nb::gil_scoped_release>(),
      "Loads what a transport needs, once; returns a description of it.");
  m.def(
      "offered_offer",
      [](const std::string& transport, int peer, int channel, bool sending, const OfferedTransport::Place& place) {
        return Running().network().transport(transport).Offer(peer, channel, sending, place);
      },
      nb::arg("transport"), nb::arg("peer"), nb::arg("channel"), nb::arg("sending"), nb::arg("place"),
      nb::call_guard<nb::gil_scoped_release>(),
      "Makes this end of a link at a place of the transport's; returns the offer for the peer.");
  m.def(
      "offered_prepare",
      [](const std::string& transport, int peer, int channel, bool sending, const std::string& offer) {
        Running().network().transport(transport).Prepare(peer, channel, sending, offer);
      },
      nb::arg("transport"), nb::arg("peer"), nb::arg("channel"), nb::arg("sending"), nb::arg("offer"),
      nb::call_guard<nb::gil_scoped_release>(), "Gives this end of a link the peer's offer.");
  m.def(
      "offered_finish",
      [](const std::string& transport, int peer, int channel, bool sending, int fd, double timeout_s,
         const std::string& path) {
        return Running().network().AddOffered(transport, peer, channel, sending, fd, timeout_s, path);
      },
      nb::arg("transport"), nb::arg("peer"), nb::arg("channel"), nb::arg("sending"), nb::arg("fd"),
      nb::arg("timeout_s"), nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
      "Puts a link into service and takes over its socket; returns a description of the link.");
  m.def(
      "control",
      [](int peer, int fd, bool dialled, const nb::bytes& key, double timeout_s, const std::string& path) {
        Running().network().AddControl(peer, MakeStream(fd, key, dialled, timeout_s), path, dialled);
      },
      nb::arg("peer"), nb::arg("fd"), nb::arg("dialled"), nb::arg("key"), nb::arg("timeout_s"), nb::arg("path"),
      "Takes over a connected socket as a control connection. Its end means that the peer's process has ended.");
}

}  // namespace jaxring
