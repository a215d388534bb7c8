// The functions by which Python (jaxring/world/links.py) gives an engine its links to other processes. Both modules
// have an engine of their own and bind the same functions to it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "engine/runtime.h"

namespace jaxring {

inline Engine& Running() {
  Engine* engine = RunningEngine();
  if (engine == nullptr) throw std::runtime_error("jaxring's engine is not running");
  return *engine;
}

inline void BindLinks(nanobind::module_& m) {
  namespace nb = nanobind;
  m.def("bell_fd", [] { return Running().bell().fd(); }, "The memfd of this process's doorbell.");
  m.def(
      "shm_create",
      [](int peer, int channel) {
        Engine& engine = Running();
        auto link = std::make_shared<SendLink>("shm", LinkMemory::Shared(engine.links().slot_bytes()), nullptr);
        int fd = link->memory.fd();
        // Not listed before shm_ring: a message published without the peer's bell would wake nobody.
        engine.links().AddPending(peer, channel, std::move(link));
        return fd;
      },
      nb::arg("peer"), nb::arg("channel"), "Makes a sending link's shared memory; returns its descriptor.");
  m.def(
      "shm_ring",
      [](int peer, int channel, const std::string& bell_path) {
        Running().links().CompletePending(peer, channel, Bell::Open(bell_path));
      },
      nb::arg("peer"), nb::arg("channel"), nb::arg("bell_path"), "The peer has mapped the link: puts it into service.");
  m.def(
      "shm_attach",
      [](int peer, int channel, const std::string& ring_path, const std::string& bell_path) {
        Engine& engine = Running();
        auto bell = Bell::Open(bell_path);
        auto link =
            std::make_shared<RecvLink>("shm", LinkMemory::Open(ring_path, engine.links().slot_bytes()), bell.get());
        link->notifier = std::move(bell);
        engine.links().AddRecv(peer, channel, std::move(link));
      },
      nb::arg("peer"), nb::arg("channel"), nb::arg("ring_path"), nb::arg("bell_path"), "Maps a peer's sending link.");
  m.def(
      "tcp_attach",
      [](int peer, int channel, int fd, bool sending) {
        sending ? Running().AddTcpSend(peer, channel, fd) : Running().AddTcpRecv(peer, channel, fd);
      },
      nb::arg("peer"), nb::arg("channel"), nb::arg("fd"), nb::arg("sending"), "Takes over a connected socket.");
  m.def(
      "watch", [](int peer, int fd) { Running().WatchPeer(peer, fd); }, nb::arg("peer"), nb::arg("fd"),
      "Takes over a socket whose end means that the peer's process ended.");
}

}  // namespace jaxring
