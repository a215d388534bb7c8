// Links of a test's job by RDMA instead of TCP: JAXRING_TEST_VERBS names the devices, a comma list of device@GID index
// or, for iWARP, device@IP address. Process p has the device at p, modulo their number.
#pragma once

#include <sys/socket.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "engine/process_engine.h"
#include "tests/support/check.h"
#include "transport/verbs/endpoint/verbs_endpoint.h"

namespace jaxring::test {

inline std::vector<verbs::EndpointOptions> VerbsDevices(const char* variable = "JAXRING_TEST_VERBS") {
  std::vector<verbs::EndpointOptions> devices;
  const char* listed = std::getenv(variable);
  std::string rest = listed == nullptr ? "" : listed;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string entry = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    const size_t at = entry.find('@');
    CHECK(at != std::string::npos);
    verbs::EndpointOptions options;
    options.device = entry.substr(0, at);
    const std::string place = entry.substr(at + 1);
    if (place.find('.') != std::string::npos) {
      options.address = place;
    } else {
      options.gid_index = std::stoi(place);
    }
    const char* queue_pairs = std::getenv("JAXRING_TEST_VERBS_QPS");
    options.queue_pairs = queue_pairs == nullptr ? 1 : std::atoi(queue_pairs);
    options.timeout = 14;
    devices.push_back(options);
  }
  return devices;
}

inline Connector::Place PlaceOf(const verbs::EndpointOptions& options) {
  return {{"device", options.device},
          {"port", std::to_string(options.port)},
          {"gid_index", std::to_string(options.gid_index)},
          {"address", options.address},
          {"queue_pairs", std::to_string(options.queue_pairs)},
          {"timeout", std::to_string(options.timeout)},
          {"retry_count", std::to_string(options.retry_count)}};
}

// Makes a link from process `from` to process `to` as jaxring/world/links.py does. Returns the sender's socket, for
// tests that cut it. `path`: see SystemNetwork::AddLink.
inline int ConnectVerbs(ProcessEngine& sender, ProcessEngine& receiver, int from, int to, int channel,
                        const std::string& path = "") {
  const std::vector<verbs::EndpointOptions> devices = VerbsDevices();
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const int cut = dup(fds[0]);
  Connectors &here = sender.network().connectors(), &there = receiver.network().connectors();
  const LinkName sends{to, channel, true}, receives{from, channel, false};
  const std::string ours = here.Offer("verbs", sends, PlaceOf(devices[from % devices.size()]));
  const std::string theirs = there.Offer("verbs", receives, PlaceOf(devices[to % devices.size()]));
  there.Prepare(receives, ours);
  here.Prepare(sends, theirs);
  std::thread answering([&] { receiver.network().AddLink(receives, Descriptor(fds[1]), 30, "", path); });
  sender.network().AddLink(sends, Descriptor(fds[0]), 30, "", path);
  answering.join();
  return cut;
}

// Makes the links of a process with all of `peers`, each over the connection fd(peer, sending). put(peer, sending,
// text) publishes the offers of its ends, and get(peer, sending) returns the peers' offers; `sending` refers to this
// end.
template <class Fd, class Put, class Get>
void LinkByVerbs(ProcessEngine& engine, int process, const std::vector<int>& peers, Fd fd, Put put, Get get) {
  const std::vector<verbs::EndpointOptions> devices = VerbsDevices();
  for (int p : peers) {
    for (bool sending : {true, false}) {
      const Connector::Place place = PlaceOf(devices[process % devices.size()]);
      put(p, sending, engine.network().connectors().Offer("verbs", {p, 0, sending}, place));
    }
  }
  // Each end waits for the other's offer, so all links are made concurrently.
  std::vector<std::thread> joining;
  for (int p : peers) {
    for (bool sending : {true, false}) {
      engine.network().connectors().Prepare({p, 0, sending}, get(p, sending));
      joining.emplace_back(
          [=, &engine, own = fd(p, sending)] { engine.network().AddLink({p, 0, sending}, Descriptor(own), 30); });
    }
  }
  for (auto& each : joining) each.join();
}

}  // namespace jaxring::test
